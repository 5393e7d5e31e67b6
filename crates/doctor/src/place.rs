//! Addresses, as they are connected to, compared and shown.

use kvplane_transport::normal_address;

/// `http://host` as the place of a TCP connection, `host:80`.
pub fn place_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.split('/').next().unwrap_or(rest);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match (has_port, scheme) {
        (true, _) => authority.to_owned(),
        (false, "https") => format!("{authority}:443"),
        (false, _) => format!("{authority}:80"),
    }
}

/// An address as it may be shown: without the name and the password before the host.
pub fn without_userinfo(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match authority.rsplit_once('@') {
        None => url.to_owned(),
        Some((_, place)) if scheme.is_empty() => format!("{place}{path}"),
        Some((_, place)) => format!("{scheme}://{place}{path}"),
    }
}

/// A sentence as it may be shown: without what [`without_userinfo`] takes from addresses.
pub fn hide_userinfo(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || c == '"' || c == '`';
    // Topics have an @, too.
    let is_address = |word: &str| word.split_once('@').is_some_and(|(before, _)| before.contains(':'));
    let words = text.split_inclusive(is_end);
    words.map(|word| if is_address(word) { without_userinfo(word) } else { word.to_owned() }).collect()
}

/// The server that an address leads to, written in one way: `localhost` is a number.
pub(crate) fn same_server(url: &str) -> String {
    without_userinfo(&normal_address(url)).replacen("://localhost:", "://127.0.0.1:", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (url, place) in [
            ("http://host", "host:80"),
            ("https://host/path", "host:443"),
            ("http://host:8000/", "host:8000"),
            ("host:8000", "host:8000"),
            ("http://name:word@host:8000/path", "host:8000"),
            ("http://[::1]:8000", "[::1]:8000"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert_eq!(place_of(url), place, "{url}");
        }
        assert_eq!(same_server("http://LOCALHOST:8000/"), same_server("http://127.0.0.1:8000"));
        assert_ne!(same_server("http://localhost:8000"), same_server("http://localhost:8001"));
        // Two engines behind one proxy.
        assert_ne!(same_server("http://proxy/a"), same_server("http://proxy/b"));
    }

    #[test]
    fn nobody_is_shown_a_password() {
        for (url, shown) in [
            ("http://name:word@host:8000/a@b", "http://host:8000/a@b"),
            ("name:word@host", "host"),
            ("http://n:a@b@host", "http://host"),
            ("http://host:8000", "http://host:8000"),
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
            ("ipc:///run/a@b", "ipc:///run/a@b"),
        ] {
            assert_eq!(without_userinfo(url), shown);
            assert_eq!(
                hide_userinfo(&format!("{url}: \"{url}\", {url}")),
                format!("{shown}: \"{shown}\", {shown}")
            );
        }
    }
}
