//! The choice of the proxy for an API server, as in kubectl.

use anyhow::{Result, anyhow, bail};
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use std::net::IpAddr;

/// The proxies and exceptions from a kubeconfig and the environment.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// `proxy-url` of the cluster in the kubeconfig.
    pub proxy_url: Option<String>,
    /// `HTTPS_PROXY`, for servers at `https://`.
    pub https: Option<String>,
    /// `HTTP_PROXY`, for servers at `http://`.
    pub http: Option<String>,
    /// `NO_PROXY`: the hosts that bypass `https` and `http`.
    pub no: Option<String>,
}

impl Proxies {
    /// The variables of this process, upper case before lower case, and the `proxy_url` of a kubeconfig.
    pub fn from_env(proxy_url: Option<String>) -> Self {
        let variable = |name: &str| {
            let values = [name.to_owned(), name.to_lowercase()].into_iter().filter_map(|name| std::env::var(name).ok());
            values.into_iter().find(|value| !value.is_empty())
        };
        let [https, http, no] = ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"].map(variable);
        Self { proxy_url: proxy_url.filter(|url| !url.is_empty()), https, http, no }
    }

    /// The proxy for `server`; none for a direct connection. `proxy-url` always applies. The variables apply unless
    /// `NO_PROXY` matches, and never to this machine.
    ///
    /// # Errors
    /// If the proxy cannot be used. The message names the setting and the expected value.
    pub fn of(&self, server: &Uri) -> Result<Option<Uri>> {
        if let Some(url) = &self.proxy_url {
            return parse(url, "proxy-url of the kubeconfig").map(Some);
        }
        let (name, value) = match server.scheme_str() {
            Some("http") => ("HTTP_PROXY", &self.http),
            _ => ("HTTPS_PROXY", &self.https),
        };
        match value {
            Some(url) if !self.is_exempt(server) => parse(url, name).map(Some),
            _ => Ok(None),
        }
    }

    fn is_exempt(&self, server: &Uri) -> bool {
        let Some(host) = server.host().map(|host| host.trim_matches(['[', ']'])) else { return false };
        let is_here = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
        let entries = self.no.iter().flat_map(|no| no.split(','));
        let no: Vec<_> = entries.filter_map(|entry| for_port(entry.trim(), port)).collect();
        is_here || Matcher::builder().all("http://proxy").no(no.join(",")).build().intercept(server).is_none()
    }
}

/// `entry` of `NO_PROXY` in the syntax of [`Matcher`], which knows neither ports nor `*.`; none if the entry is for
/// another port.
fn for_port(entry: &str, port: u16) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (host, own) = match entry.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((host, own)) if is_number(own) && (!host.contains(':') || host.ends_with(']')) => (host, Some(own)),
        _ => (entry, None),
    };
    if own.is_some_and(|own| own.parse() != Ok(port)) {
        return None;
    }
    let host = host.trim_matches(['[', ']']);
    Some(host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host).to_owned())
}

/// The proxy `url` of the setting `name`.
fn parse(url: &str, name: &str) -> Result<Uri> {
    let expected = "expected http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT";
    let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let (scheme, rest) = full.split_once("://").unwrap_or_default();
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        // With both schemes the proxy resolves the name of the server.
        "socks5h" => "socks5".to_owned(),
        known @ ("http" | "https" | "socks5") => known.to_owned(),
        other => bail!("{name} has a proxy with the scheme `{other}`; {expected}"),
    };
    let uri: Uri =
        format!("{scheme}://{rest}").parse().map_err(|error| anyhow!("{name} is no proxy ({error}); {expected}"))?;
    let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
        bail!("{name} names no host; {expected}");
    };
    if scheme != "socks5" {
        return Ok(uri);
    }
    let user = authority.as_str().rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
    let port = authority.port_u16().unwrap_or(1080);
    let full = format!("socks5://{user}{}:{port}", authority.host());
    full.parse().map_err(|error| anyhow!("{name} is no proxy ({error}); {expected}"))
}

/// The user and password of `proxy` for socks5, without URI escapes.
pub fn socks_user(proxy: &Uri) -> Option<(String, String)> {
    let any = Uri::from_static("http://any");
    let intercept = Matcher::builder().all(proxy.to_string()).build().intercept(&any)?;
    intercept.raw_auth().map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// `proxy` for display: without its password.
pub fn shown(proxy: &Uri) -> String {
    let authority = proxy.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{}://{host}", proxy.scheme_str().unwrap_or("http"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(proxies: &Proxies, server: &str) -> Result<Option<String>, String> {
        let found = proxies.of(&server.parse().expect("a URI"));
        found.map(|proxy| proxy.map(|proxy| proxy.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn no_proxy_is_read_as_kubectl_reads_it() {
        for (no, server, is_direct) in [
            ("", "https://api.example.com:6443", false),
            ("api.example.com", "https://api.example.com:6443", true),
            ("example.com", "https://api.example.com:6443", true),
            (".example.com", "https://api.example.com:6443", true),
            ("*.example.com", "https://api.example.com:6443", true),
            ("API.Example.COM", "https://api.example.com:6443", true),
            ("ple.com", "https://api.example.com:6443", false),
            ("api.example.com:6443", "https://api.example.com:6443", true),
            ("api.example.com:443", "https://api.example.com:6443", false),
            ("api.example.com:443", "https://api.example.com", true),
            ("other, ,api.example.com,", "https://api.example.com", true),
            ("*", "https://api.example.com", true),
            ("10.0.0.1", "https://10.0.0.1:6443", true),
            ("10.0.0.0/8", "https://10.9.8.7:6443", true),
            ("10.0.0.0/8", "https://11.0.0.1:6443", false),
            ("10.0.0.1:443", "https://10.0.0.1:6443", false),
            ("fd00::1", "https://[fd00::1]:6443", true),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", true),
            ("fd00::/8", "https://[fd00::1]:6443", true),
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.2:6443", true),
            ("", "https://[::1]:6443", true),
        ] {
            let proxies = Proxies { https: Some("http://p:1".into()), no: Some(no.into()), ..Proxies::default() };
            let expected = if is_direct { None } else { Some("http://p:1/".to_owned()) };
            assert_eq!(chosen(&proxies, server), Ok(expected), "NO_PROXY={no} {server}");
        }
    }

    #[test]
    fn the_kubeconfig_wins_over_variables_and_no_proxy_and_each_scheme_has_its_variable() {
        let all = Proxies {
            proxy_url: Some("http://own:1".into()),
            https: Some("http://secure:1".into()),
            http: Some("http://plain:1".into()),
            no: Some("*".into()),
        };
        assert_eq!(chosen(&all, "https://127.0.0.1:6443"), Ok(Some("http://own:1/".into())));
        let variables = Proxies { proxy_url: None, no: None, ..all };
        assert_eq!(chosen(&variables, "https://a"), Ok(Some("http://secure:1/".into())));
        assert_eq!(chosen(&variables, "http://a"), Ok(Some("http://plain:1/".into())));
        let one = Proxies { http: None, ..variables };
        assert_eq!(chosen(&one, "http://a"), Ok(None));
    }

    #[test]
    fn a_proxy_is_written_in_several_ways_and_what_is_none_is_told_by_its_setting() {
        for (url, expected) in [
            ("proxy.example.com:3128", Ok("http://proxy.example.com:3128/")),
            ("HTTP://proxy:3128", Ok("http://proxy:3128/")),
            ("http://user:p%40ss@proxy:3128", Ok("http://user:p%40ss@proxy:3128/")),
            ("https://proxy", Ok("https://proxy/")),
            ("socks5://proxy", Ok("socks5://proxy:1080/")),
            ("socks5h://[::1]:9", Ok("socks5://[::1]:9/")),
            ("socks4://proxy", Err("scheme `socks4`; expected http://HOST:PORT")),
            ("ftp://proxy", Err("HTTPS_PROXY has a proxy with the scheme `ftp`")),
            ("http://", Err("HTTPS_PROXY is no proxy")),
            ("http://a b", Err("HTTPS_PROXY is no proxy")),
            ("socks5://user:p%40ss@proxy", Ok("socks5://user:p%40ss@proxy:1080/")),
        ] {
            let proxies = Proxies { https: Some(url.into()), ..Proxies::default() };
            match (chosen(&proxies, "https://a"), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), Some(expected), "{url}"),
                (Err(found), Err(words)) => assert!(found.contains(words), "{url}: {found}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_user_for_socks5_is_read_without_escapes() {
        let user = |proxy: &str| socks_user(&proxy.parse().expect("a URI"));
        assert_eq!(user("socks5://user:p%40ss@proxy:1080"), Some(("user".to_owned(), "p@ss".to_owned())));
        assert_eq!(user("socks5://proxy:1080"), None);
        assert_eq!(user("http://user:pass@proxy:1080"), None, "kube gives it to HTTP proxies itself");
    }

    #[test]
    fn a_proxy_is_shown_without_its_password() {
        assert_eq!(shown(&"http://user:secret@proxy:3128/".parse().expect("a URI")), "http://proxy:3128");
    }
}
