//! Environment variables that neither a device nor a Configuration may set for a workload.
//!
//! These variables decide which code the loader, a shell or an interpreter runs before the program, and which
//! certificates and servers the program trusts. The list covers the variables that sudo and the C library remove for
//! privileged programs, and those that interpreters and clients have added since.

/// Forbidden names.
const NAMES: &[&str] = &[
    "AWS_CA_BUNDLE",
    "AWS_ENDPOINT_URL",
    "ASPNETCORE_HOSTINGSTARTUPASSEMBLIES",
    "BASHOPTS",
    "BROWSER",
    "CDPATH",
    "CLASSPATH",
    "CURL_CA_BUNDLE",
    "CURL_HOME",
    "EDITOR",
    "ENV",
    "ERL_AFLAGS",
    "ERL_FLAGS",
    "ERL_LIBS",
    "ERL_ZFLAGS",
    "FPATH",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GIO_EXTRA_MODULES",
    "GLIBC_TUNABLES",
    "GLOBIGNORE",
    "GODEBUG",
    "GTK_MODULES",
    "GTK_PATH",
    "HOME",
    "HOSTALIASES",
    "IFS",
    "INPUTRC",
    "JAVA_HOME",
    "JAVA_OPTS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "KUBECONFIG",
    "LESSCLOSE",
    "LESSOPEN",
    "LOCALDOMAIN",
    "LOCPATH",
    "MANPAGER",
    "NIS_PATH",
    "NLSPATH",
    "NODE_EXTRA_CA_CERTS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_TLS_REJECT_UNAUTHORIZED",
    "NULLCMD",
    "PAGER",
    "PATH",
    "PATH_LOCALE",
    "PERLLIB",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "PROMPT_COMMAND",
    "PS4",
    "QT_PLUGIN_PATH",
    "READNULLCMD",
    "REQUESTS_CA_BUNDLE",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "RUBYLIB",
    "RUBYOPT",
    "RUBYPATH",
    "R_ENVIRON",
    "R_LIBS",
    "R_PROFILE",
    "SHELL",
    "SHELLOPTS",
    "SSLKEYLOGFILE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TCLLIBPATH",
    "TERMCAP",
    "TERMINFO",
    "TERMINFO_DIRS",
    "TERMPATH",
    "TMPDIR",
    "TZDIR",
    "VISUAL",
    "ZDOTDIR",
];

/// Forbidden prefixes of names.
const BEGINNINGS: &[&str] = &[
    "BASH_",
    "BUNDLE_",
    "COMPlus_",
    "CORECLR_",
    "DOCKER_",
    "DOTNET_",
    "GEM_",
    "GIT_",
    "GST_PLUGIN_",
    "KRB5",
    "KUBERNETES_",
    "LD_",
    "LUA_",
    "MALLOC_",
    "OPENSSL_",
    "PERL5",
    "PERL_",
    "PYTHON",
    "RUSTC_",
    "SSH_",
    "XDG_CONFIG_",
    "XDG_DATA_",
    "_JAVA_",
    "_RLD_",
];

/// Suffix of the names of proxy variables; compared case-insensitively.
const PROXY: &str = "_proxy";

/// Explanation for messages that reject such a name.
pub const NEVER_SET: &str = "it changes how a program starts or where it connects, as do PATH, LD_*, PYTHON*, *_PROXY and others";

/// Returns true if a variable of this name must never be set. Given a name pattern, returns true if that holds for
/// every name it matches.
pub fn is_never_set(name: &str) -> bool {
    let is_proxy = || {
        let end = name.len().checked_sub(PROXY.len());
        let end = end.and_then(|end| name.get(end..));
        end.is_some_and(|end| end.eq_ignore_ascii_case(PROXY))
    };
    NAMES.contains(&name)
        || BEGINNINGS
            .iter()
            .any(|beginning| name.starts_with(beginning))
        || is_proxy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starts_or_redirects_a_program_is_never_set_and_its_neighbours_are_not() {
        for name in [
            "PATH",
            "LD_PRELOAD",
            "LD_",
            "KUBERNETES_SERVICE_HOST",
            "BASH_ENV",
            "BASH_FUNC_ls",
            "ENV",
            "SHELLOPTS",
            "PS4",
            "IFS",
            "PROMPT_COMMAND",
            "http_proxy",
            "HTTPS_PROXY",
            "No_Proxy",
            "_proxy",
            "NODE_OPTIONS",
            "NODE_EXTRA_CA_CERTS",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PERL5OPT",
            "PERLLIB",
            "RUBYOPT",
            "JAVA_TOOL_OPTIONS",
            "_JAVA_OPTIONS",
            "CLASSPATH",
            "GIT_SSH_COMMAND",
            "GCONV_PATH",
            "MALLOC_TRACE",
            "GLIBC_TUNABLES",
            "HOSTALIASES",
            "TMPDIR",
            "DOTNET_STARTUP_HOOKS",
            "CORECLR_PROFILER",
            "PHP_INI_SCAN_DIR",
            "LUA_INIT",
            "SSL_CERT_FILE",
            "OPENSSL_CONF",
            "KUBECONFIG",
            "HOME",
        ] {
            assert!(is_never_set(name), "{name}");
        }
        for name in [
            "",
            "A",
            "PATHS",
            "MY_PATH",
            "ENVIRONMENT",
            "NODE_NAME",
            "proxy",
            "PROXY_URL",
            "HTTP_PROXY_URL",
            "ä_prox",
            "HOMEPAGE",
            "MODE",
            "UDEV_DEVNODE",
            "ONVIF_DEVICE_SERVICE_URL",
            "OPCUA_DISCOVERY_URL",
            "DEBUG_ECHO_DESCRIPTION",
            "MOCK_GPU_INDEX",
            "PCI_RESOURCE_AKRI_SH_GPU",
            "NVIDIA_VISIBLE_DEVICES",
            "FRAMES_PER_SECOND",
        ] {
            assert!(!is_never_set(name), "{name}");
        }
    }
}
