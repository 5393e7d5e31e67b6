//! An Envoy bootstrap for standalone use: a listener, the picker, and the pool behind it.

use std::net::SocketAddr;

use kvplane_inference::Pool;

const TEMPLATE: &str = include_str!("envoy_config/bootstrap.yaml");

/// What a bootstrap is made of.
#[derive(Debug, Clone, Copy)]
pub struct Bootstrap<'a> {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Envoy's own pages.
    pub admin: SocketAddr,
    /// The picker.
    pub picker: SocketAddr,
    /// It speaks TLS, with any certificate.
    pub picker_tls: bool,
    /// Endpoints that may be served.
    pub pool: &'a Pool,
}

/// The bootstrap, as YAML.
pub fn bootstrap(parts: &Bootstrap<'_>) -> String {
    let takers = parts.pool.endpoints().iter().filter(|one| one.takes_requests());
    let endpoints: String =
        takers.map(|one| format!("\n        - endpoint: {{address: {}}}", socket(one.address))).collect();
    let endpoints = if endpoints.is_empty() { " []".to_owned() } else { endpoints };
    let tls = if parts.picker_tls {
        "\n    transport_socket:\n      name: envoy.transport_sockets.tls\n      typed_config:\n        \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n        \
         common_tls_context: {alpn_protocols: [h2]}"
    } else {
        ""
    };
    TEMPLATE
        .replace("@LISTEN@", &socket(parts.listen))
        .replace("@ADMIN@", &socket(parts.admin))
        .replace("@PICKER@", &socket(parts.picker))
        .replace("@PICKER_TLS@", tls)
        .replace("@ENDPOINTS@", &endpoints)
}

fn socket(address: SocketAddr) -> String {
    format!("{{socket_address: {{address: \"{}\", port_value: {}}}}}", address.ip(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn it_is_yaml_with_what_matters() {
        let pool =
            crate::endpoints::read("- {address: 10.0.0.1, port: 8000}\n- {address: 'fd00::1', port: 1}")
                .unwrap();
        for picker_tls in [false, true] {
            let text = bootstrap(&Bootstrap {
                listen: "0.0.0.0:8080".parse().unwrap(),
                admin: "127.0.0.1:9901".parse().unwrap(),
                picker: "127.0.0.1:9002".parse().unwrap(),
                picker_tls,
                pool: &pool,
            });
            assert!(!text.contains('@') || !text.contains("@PICKER"), "{text}");
            let json = yaml::parse(&text).unwrap();
            let clusters = json.pointer("/static_resources/clusters").unwrap();
            let engines = clusters.pointer("/0/load_assignment/endpoints/0/lb_endpoints").unwrap();
            assert_eq!(engines.as_array().unwrap().len(), 2);
            assert_eq!(
                clusters.pointer("/1/common_lb_config/healthy_panic_threshold/value"),
                Some(&0.into())
            );
            assert_eq!(clusters.pointer("/1/transport_socket").is_some(), picker_tls);
        }
    }
}
