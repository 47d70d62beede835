//! Status codes (OPC 10000-6, annex A).

use std::fmt;

/// Status code of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Answer larger than the client accepts.
    pub const ENCODING_LIMITS_EXCEEDED: Self = Self(0x8008_0000);
    /// Answer larger than the client accepts.
    pub const RESPONSE_TOO_LARGE: Self = Self(0x80b9_0000);
    /// Message larger than the client accepts.
    pub const TCP_MESSAGE_TOO_LARGE: Self = Self(0x8080_0000);
    /// Failed security check; servers need not say which.
    pub const SECURITY_CHECKS_FAILED: Self = Self(0x8013_0000);
    /// Security mode that the server does not accept.
    pub const SECURITY_MODE_REJECTED: Self = Self(0x8054_0000);
    /// Security policy that the server does not accept.
    pub const SECURITY_POLICY_REJECTED: Self = Self(0x8055_0000);
    /// Security mode too weak for the service.
    pub const SECURITY_MODE_INSUFFICIENT: Self = Self(0x80e6_0000);

    /// Returns true if the service failed, by the highest two bits; a reserved value counts as a failure.
    pub fn is_bad(self) -> bool {
        self.0 >> 31 == 1
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The lower half has details about values, which the answers here do not have.
        let code = self.0 & 0xffff_0000;
        match NAMES.iter().find(|(known, _)| *known == code) {
            Some((_, name)) => write!(f, "{name} (0x{:08X})", self.0),
            None => write!(f, "status code 0x{:08X}", self.0),
        }
    }
}

/// Names of the status codes for discovery, secure channels and connections.
const NAMES: &[(u32, &str)] = &[
    (0, "Good"),
    (0x8001_0000, "BadUnexpectedError"),
    (0x8002_0000, "BadInternalError"),
    (0x8003_0000, "BadOutOfMemory"),
    (0x8004_0000, "BadResourceUnavailable"),
    (0x8005_0000, "BadCommunicationError"),
    (0x8006_0000, "BadEncodingError"),
    (0x8007_0000, "BadDecodingError"),
    (0x8008_0000, "BadEncodingLimitsExceeded"),
    (0x8009_0000, "BadUnknownResponse"),
    (0x800a_0000, "BadTimeout"),
    (0x800b_0000, "BadServiceUnsupported"),
    (0x800c_0000, "BadShutdown"),
    (0x800d_0000, "BadServerNotConnected"),
    (0x800e_0000, "BadServerHalted"),
    (0x800f_0000, "BadNothingToDo"),
    (0x8010_0000, "BadTooManyOperations"),
    (0x8012_0000, "BadCertificateInvalid"),
    (0x8013_0000, "BadSecurityChecksFailed"),
    (0x801a_0000, "BadCertificateUntrusted"),
    (0x801f_0000, "BadUserAccessDenied"),
    (0x8022_0000, "BadSecureChannelIdInvalid"),
    (0x8023_0000, "BadInvalidTimestamp"),
    (0x8024_0000, "BadNonceInvalid"),
    (0x803d_0000, "BadNotSupported"),
    (0x8040_0000, "BadNotImplemented"),
    (0x8053_0000, "BadRequestTypeInvalid"),
    (0x8054_0000, "BadSecurityModeRejected"),
    (0x8055_0000, "BadSecurityPolicyRejected"),
    (0x807d_0000, "BadTcpServerTooBusy"),
    (0x807e_0000, "BadTcpMessageTypeInvalid"),
    (0x807f_0000, "BadTcpSecureChannelUnknown"),
    (0x8080_0000, "BadTcpMessageTooLarge"),
    (0x8081_0000, "BadTcpNotEnoughResources"),
    (0x8082_0000, "BadTcpInternalError"),
    (0x8083_0000, "BadTcpEndpointUrlInvalid"),
    (0x8084_0000, "BadRequestInterrupted"),
    (0x8085_0000, "BadRequestTimeout"),
    (0x8086_0000, "BadSecureChannelClosed"),
    (0x8087_0000, "BadSecureChannelTokenUnknown"),
    (0x8088_0000, "BadSequenceNumberInvalid"),
    (0x80ab_0000, "BadInvalidArgument"),
    (0x80ac_0000, "BadConnectionRejected"),
    (0x80ae_0000, "BadConnectionClosed"),
    (0x80af_0000, "BadInvalidState"),
    (0x80b7_0000, "BadMaxConnectionsReached"),
    (0x80b8_0000, "BadRequestTooLarge"),
    (0x80b9_0000, "BadResponseTooLarge"),
    (0x80be_0000, "BadProtocolVersionUnsupported"),
    (0x80e6_0000, "BadSecurityModeInsufficient"),
    (0x810e_0000, "BadLicenseExpired"),
    (0x810f_0000, "BadLicenseLimitsExceeded"),
    (0x8110_0000, "BadLicenseNotAvailable"),
];

#[cfg(test)]
mod tests {
    use opcua_types::StatusCode;

    use super::*;

    #[test]
    fn names_and_constants_are_those_of_the_library() {
        for (code, name) in NAMES {
            assert_eq!(StatusCode::from(*code).to_string(), *name);
        }
        for (ours, theirs) in [
            (
                Status::ENCODING_LIMITS_EXCEEDED,
                StatusCode::BadEncodingLimitsExceeded,
            ),
            (Status::RESPONSE_TOO_LARGE, StatusCode::BadResponseTooLarge),
            (
                Status::TCP_MESSAGE_TOO_LARGE,
                StatusCode::BadTcpMessageTooLarge,
            ),
            (
                Status::SECURITY_CHECKS_FAILED,
                StatusCode::BadSecurityChecksFailed,
            ),
            (
                Status::SECURITY_MODE_REJECTED,
                StatusCode::BadSecurityModeRejected,
            ),
            (
                Status::SECURITY_POLICY_REJECTED,
                StatusCode::BadSecurityPolicyRejected,
            ),
            (
                Status::SECURITY_MODE_INSUFFICIENT,
                StatusCode::BadSecurityModeInsufficient,
            ),
        ] {
            assert_eq!(ours.0, theirs.bits());
        }
    }

    #[test]
    fn a_code_is_shown_by_name_and_number_and_failures_are_told_from_the_rest() {
        for (code, shown, is_bad) in [
            (0, "Good (0x00000000)", false),
            (0x4000_0000, "status code 0x40000000", false),
            (0x8055_0000, "BadSecurityPolicyRejected (0x80550000)", true),
            (0x8055_0001, "BadSecurityPolicyRejected (0x80550001)", true),
            (0x80ff_0000, "status code 0x80FF0000", true),
        ] {
            let status = Status(code);
            assert_eq!(
                (status.to_string().as_str(), status.is_bad()),
                (shown, is_bad)
            );
        }
    }
}
