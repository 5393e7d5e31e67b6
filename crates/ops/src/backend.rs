//! Whom to ask.

use std::fmt;
use std::str::FromStr;

use http::HeaderValue;
use kvplane_core::EngineKind;

/// A server that can be asked. Several ranks, or several engines, may be behind one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its software.
    pub kind: EngineKind,
    /// Its HTTP server: `http://host:port`.
    pub http: Option<String>,
    /// Its gRPC server.
    pub grpc: Option<GrpcServer>,
    /// Its release, where it is known. Unknown counts as the newest: the answer tells what it was.
    pub version: Option<Version>,
    /// The `Authorization` header of its HTTP server, where it wants a key. To be marked as sensitive, so
    /// that nothing prints it.
    pub authorization: Option<HeaderValue>,
}

/// A server of one of SMG's services.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrpcServer {
    /// `http://host:port` or `https://host:port`.
    pub url: String,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
}

/// Over what a backend is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// The engine's own HTTP server.
    Http,
    /// One of SMG's services.
    Grpc,
}

impl Transport {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Grpc => "gRPC",
        }
    }
}

/// Whose service an engine, or a relay before one, offers to gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// `vllm.grpc.engine.VllmEngine`.
    Vllm,
    /// `sglang.grpc.scheduler.SglangScheduler`.
    Sglang,
    /// `tokenspeed.grpc.scheduler.TokenSpeedScheduler`.
    Tokenspeed,
    /// `trtllm.TrtllmService`.
    Trtllm,
    /// `mlx.grpc.engine.MlxEngine`.
    Mlx,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 5] = [Self::Vllm, Self::Sglang, Self::Tokenspeed, Self::Trtllm, Self::Mlx];

    /// Its full name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm.grpc.engine.VllmEngine",
            Self::Sglang => "sglang.grpc.scheduler.SglangScheduler",
            Self::Tokenspeed => "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
            Self::Trtllm => "trtllm.TrtllmService",
            Self::Mlx => "mlx.grpc.engine.MlxEngine",
        }
    }

    /// The services that a server of this kind may offer. A relay may stand before any engine: then all are
    /// tried, and those that it does not have change nothing.
    pub fn of(kind: EngineKind) -> &'static [Self] {
        match kind {
            EngineKind::Vllm => &[Self::Vllm],
            EngineKind::Sglang => &[Self::Sglang],
            EngineKind::Tokenspeed => &[Self::Tokenspeed],
            EngineKind::Trtllm => &[Self::Trtllm],
            EngineKind::Grpc => &Self::ALL,
            EngineKind::Kvplane => &[],
        }
    }
}

/// A release: three numbers, whatever stands behind them left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A text that does not begin with two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoVersion;

impl FromStr for Version {
    type Err = NoVersion;

    /// `0.26.1`, `v0.5.10.post2`, `0.32.0rc1+cu129`; the third number may be missing.
    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let mut numbers = text.trim().trim_start_matches('v').split('.').map(|part| {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            part.get(..digits).and_then(|digits| digits.parse::<u32>().ok())
        });
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self(major, minor, numbers.next().flatten().unwrap_or(0))),
            _ => Err(NoVersion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_engines_write_them() {
        for (text, version) in [
            ("0.26.1", Version(0, 26, 1)),
            ("v0.5.10.post2", Version(0, 5, 10)),
            ("0.32.0rc1+cu129", Version(0, 32, 0)),
            ("1.3", Version(1, 3, 0)),
        ] {
            assert_eq!(text.parse(), Ok(version), "{text}");
        }
        for text in ["", "dev", "1", "0.x.1", "99999999999.1"] {
            assert_eq!(text.parse::<Version>(), Err(NoVersion), "{text}");
        }
    }

    #[test]
    fn kinds_and_services_agree() {
        for kind in EngineKind::ALL {
            if let Some(name) = kind.grpc_service() {
                assert_eq!(
                    Service::of(kind).iter().map(|service| service.name()).collect::<Vec<_>>(),
                    [name]
                );
            }
        }
    }
}
