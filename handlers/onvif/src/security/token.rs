//! WS-Security `UsernameToken` with `PasswordDigest` (OASIS Web Services Security, Username Token Profile 1.0, 3.1).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha1::{Digest as _, Sha1};

use super::Credential;
use crate::soap::clock::UtcTime;
use crate::xml::escape;

/// Returns the `wsse:Security` element. `created` is in the camera's own time, with which the camera compares it; `nonce`
/// must be new for every request.
pub fn security(credential: &Credential, nonce: &[u8], created: UtcTime) -> String {
    let created = created.xml();
    let digest = password_digest(nonce, &created, &credential.password);
    let nonce = BASE64_STANDARD.encode(nonce);
    let user = escape(&credential.user);
    format!(
        "<wsse:Security s:mustUnderstand=\"1\" \
         xmlns:wsse=\"http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd\" \
         xmlns:wsu=\"http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd\">\
         <wsse:UsernameToken><wsse:Username>{user}</wsse:Username>\
         <wsse:Password Type=\"http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0#PasswordDigest\">{digest}</wsse:Password>\
         <wsse:Nonce EncodingType=\"http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#Base64Binary\">{nonce}</wsse:Nonce>\
         <wsu:Created>{created}</wsu:Created></wsse:UsernameToken></wsse:Security>"
    )
}

/// Computes `Base64(SHA-1(nonce + created + password))`.
fn password_digest(nonce: &[u8], created: &str, password: &str) -> String {
    let digest = Sha1::new()
        .chain_update(nonce)
        .chain_update(created)
        .chain_update(password)
        .finalize();
    BASE64_STANDARD.encode(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn the_digest_is_that_of_known_tokens() {
        for (nonce, created, password, digest) in [
            // ONVIF Application Programmer's Guide 1.0, 6.1.
            (
                "LKqI6G/AikKCQrN0zqZFlg==",
                "2010-09-16T07:50:45Z",
                "userpassword",
                "tuOSpGlFlIXsozq4HFNeeGeFLEI=",
            ),
            // The unit test of Akri's handler.
            (
                "bm9uY2U=",
                "2000-01-01T12:34:56:789Z",
                "1234567",
                "AGsoQQ+qNJu6Ha7h/QAPoQvYcV0=",
            ),
        ] {
            let nonce = BASE64_STANDARD.decode(nonce).unwrap();
            assert_eq!(password_digest(&nonce, created, password), digest);
        }
    }

    #[test]
    fn the_token_says_the_name_and_not_the_password() {
        let credential = Credential {
            user: "a<b&\"c\"".to_owned(),
            password: "hunter2".to_owned(),
        };
        let time = UtcTime::new((2010, 9, 16), (7, 50, 45)).unwrap();
        let text = security(&credential, b"0123456789abcdef", time);
        assert!(!text.contains("hunter2"), "{text}");
        let mut said = Vec::new();
        xml::read(text.as_bytes(), &mut |element| {
            said.push((element.name(0).to_owned(), element.text.to_owned()));
        })
        .unwrap();
        let said = |name: &str| {
            said.iter()
                .find_map(|(other, text)| (other == name).then_some(text.as_str()))
        };
        assert_eq!(said("Username"), Some("a<b&\"c\""));
        assert_eq!(said("Nonce"), Some("MDEyMzQ1Njc4OWFiY2RlZg=="));
        assert_eq!(said("Created"), Some("2010-09-16T07:50:45Z"));
        assert_eq!(
            said("Password").map(str::to_owned),
            Some(password_digest(
                b"0123456789abcdef",
                "2010-09-16T07:50:45Z",
                "hunter2"
            ))
        );
    }
}
