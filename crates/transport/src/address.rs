//! What addresses say, before anybody is asked.

use std::net::IpAddr;

use http::Uri;

/// An address as it is compared: whatever does not lead elsewhere is written in one way. What is none stays
/// as it is.
pub fn normal_address(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return url.to_owned() };
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else { return url.to_owned() };
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    format!("{scheme}://{host}:{port}{}", uri.path().trim_end_matches('/'))
}

/// Whether a request's `Host` is an address, or this machine's own name for itself. Any other name has an
/// owner, who can have it resolve to this machine after a page of theirs was loaded: to the browser the page
/// is then ours.
pub fn is_nobodys_name(host: &str) -> bool {
    let Some((host, _)) = host_and_port(host) else { return false };
    let host = host.to_ascii_lowercase();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    bare.parse::<IpAddr>().is_ok() || host == "localhost" || host.ends_with(".localhost")
}

/// The two parts of `host`, `host:port` or `[address]:port`, and of nothing else: no user, no path, nothing
/// after a bracket but a port. The host keeps its brackets.
pub fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((six, rest)) => {
            six.parse::<std::net::Ipv6Addr>().ok()?;
            (&text[..six.len() + 2], rest)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
        _ => return None,
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (host.starts_with('[') || (!host.is_empty() && host.bytes().all(plain))).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_is_one_however_its_address_is_written() {
        for written in
            ["http://host:80", "http://HOST", "HTTP://host/", "http://host:80/", "http://name:word@host"]
        {
            assert_eq!(normal_address(written), "http://host:80", "{written}");
        }
        assert_eq!(normal_address("https://host/a/"), "https://host:443/a");
        assert_ne!(normal_address("http://host/a"), normal_address("http://host/b"));
        assert_eq!(normal_address("no address"), "no address");
    }

    #[test]
    fn names_that_others_own() {
        for host in
            ["127.0.0.1:8090", "[::1]:8090", "10.0.0.7", "localhost", "LOCALHOST:80", "plane.localhost:80"]
        {
            assert!(is_nobodys_name(host), "{host}");
        }
        for host in [
            "plane.example",
            "localhost.example:80",
            "127.0.0.1.example",
            "",
            "[::1].evil",
            "[::1]evil",
            "[::1].evil:80",
            "[localhost]",
            "::1]",
            "[::1",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "a@localhost",
            "localhost/x",
            "[[::1]]",
        ] {
            assert!(!is_nobodys_name(host), "{host}");
        }
    }
}
