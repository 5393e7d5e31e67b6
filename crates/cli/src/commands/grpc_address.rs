//! Finds the gRPC address of a kvplane by its HTTP address.

use std::net::SocketAddr;

use anyhow::anyhow;
use http::{Method, Uri};
use kvplane_doctor::without_userinfo;
use serde_json::Value;

use super::Failure;
use super::http_client::ask;
use crate::args::ServerArgs;

/// Asks the plane where it serves gRPC.
pub(super) async fn grpc_address(args: &ServerArgs) -> Result<String, Failure> {
    let status = ask(&args.server, &args.key, Method::GET, "/v1/status?limit=1", None).await?;
    named_by(&args.server, &status).ok_or_else(|| {
        let server = without_userinfo(&args.server);
        anyhow!("{server} does not say where it serves gRPC: give that address with --plane").into()
    })
}

/// The gRPC address that a status names, as seen from where `server` was reached.
fn named_by(server: &str, status: &Value) -> Option<String> {
    let base = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let uri: Uri = base.parse().ok()?;
    let listeners = status["listeners"].as_array()?;
    let listens_at = |name: &str| -> Option<SocketAddr> {
        let listener = listeners.iter().find(|listener| listener["name"] == name)?;
        listener["address"].as_str()?.parse().ok()
    };
    let (http, grpc) = (listens_at("listen.http")?, listens_at("listen.grpc")?);
    // Another machine's loopback is not ours.
    let has_address_of_its_own = grpc.ip() != http.ip()
        && !grpc.ip().is_unspecified()
        && (http.ip().is_loopback() || !grpc.ip().is_loopback());
    let authority =
        if has_address_of_its_own { grpc.to_string() } else { format!("{}:{}", uri.host()?, grpc.port()) };
    Some(format!("{}://{authority}", uri.scheme_str()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(server: &str, http: &str, grpc: &str) -> String {
        let listeners =
            json!([{"name": "listen.http", "address": http}, {"name": "listen.grpc", "address": grpc}]);
        named_by(server, &json!({ "listeners": listeners })).unwrap()
    }

    #[test]
    fn the_host_is_the_one_that_was_reached_unless_grpc_has_its_own() {
        assert_eq!(
            found("http://127.0.0.1:8090", "127.0.0.1:8090", "127.0.0.1:50090"),
            "http://127.0.0.1:50090"
        );
        assert_eq!(
            found("plane.example:8090", "0.0.0.0:8090", "0.0.0.0:50090"),
            "http://plane.example:50090"
        );
        assert_eq!(
            found("https://user:word@plane.example/", "[::]:443", "[::]:444"),
            "https://plane.example:444"
        );
        assert_eq!(found("http://[fd00::1]:8090", "[fd00::1]:8090", "[fd00::1]:1"), "http://[fd00::1]:1");
        assert_eq!(found("http://localhost:8090", "127.0.0.1:8090", "10.0.0.5:1"), "http://10.0.0.5:1");
        assert_eq!(found("http://localhost:8090", "127.0.0.1:8090", "0.0.0.0:1"), "http://localhost:1");
        assert_eq!(found("http://10.0.0.5:8090", "0.0.0.0:8090", "127.0.0.1:1"), "http://10.0.0.5:1");
    }

    #[test]
    fn an_older_plane_names_no_listeners() {
        assert_eq!(named_by("http://127.0.0.1:8090", &json!({"engines": []})), None);
    }
}
