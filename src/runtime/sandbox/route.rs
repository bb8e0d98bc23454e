//! The ways out of a box: addresses that are the same inside and outside.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

use std::{
    fmt,
    fmt::Write as _,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};

use super::SandboxError;

/// A `host:port` that a program in a box may connect to, over TCP, by this very name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// A host name or a literal address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A route that is none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no `host:port`")]
pub struct RouteError(pub String);

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
        let wrong = || RouteError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let port = port.parse().map_err(|_| wrong())?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if bare.is_empty() || port == 0 || !bare.bytes().all(allowed) {
            return Err(wrong());
        }
        Ok(Self { host: bare.to_owned(), port })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(out, "[{}]:{}", self.host, self.port);
        }
        write!(out, "{}:{}", self.host, self.port)
    }
}

/// What routes mean inside a box.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Addresses that are not the box's own yet.
    pub(super) addresses: Vec<IpAddr>,
    /// Where the box listens, one for each of `routes`.
    pub(super) listen: Vec<SocketAddr>,
    /// Where what arrives there goes to.
    pub(super) routes: Vec<Route>,
    /// The text of `/etc/hosts`.
    pub(super) hosts: String,
}

/// More listeners do not go into one packet.
const MOST_ROUTES: usize = 200;

impl Plan {
    /// Finds an address for each route: a literal one is its own, a name has one of those that are always there.
    pub(super) fn of(routes: &[Route]) -> Result<Self, SandboxError> {
        if routes.len() > MOST_ROUTES {
            return Err(SandboxError::TooManyRoutes(MOST_ROUTES));
        }
        let mut plan = Self { hosts: "127.0.0.1 localhost\n".to_owned(), ..Self::default() };
        let mut names: Vec<String> = Vec::new();
        for route in routes {
            let address = match route.host.parse::<IpAddr>() {
                Ok(address) if address.is_unspecified() || address.is_multicast() => {
                    return Err(SandboxError::NoRoute(route.clone()));
                }
                Ok(address) => {
                    if !address.is_loopback() && !plan.addresses.contains(&address) {
                        plan.addresses.push(address);
                    }
                    address
                }
                Err(_) if route.host.contains(':') => return Err(SandboxError::NoRoute(route.clone())),
                Err(_) => {
                    let name = route.host.to_ascii_lowercase();
                    if name == "localhost" {
                        Ipv4Addr::LOCALHOST.into()
                    } else {
                        let place = names.iter().position(|known| *known == name).unwrap_or(names.len());
                        let address = Ipv4Addr::new(127, 77, 0, u8::try_from(place + 1).unwrap_or(u8::MAX));
                        if place == names.len() {
                            let _ = writeln!(plan.hosts, "{address} {name}");
                            names.push(name);
                        }
                        address.into()
                    }
                }
            };
            let address = SocketAddr::new(address, route.port);
            if !plan.listen.contains(&address) {
                plan.listen.push(address);
                plan.routes.push(route.clone());
            }
        }
        Ok(plan)
    }

    /// Whether only who has rights over the network of the box can make it so.
    pub(super) fn needs_rights(&self) -> bool {
        !self.addresses.is_empty() || self.listen.iter().any(|address| address.port() < 1024)
    }
}

/// Connections that a box may have open at a time; more wait in the queue of their listener. Each takes two descriptors of
/// this process, of which several boxes together must leave enough: one has an eighth.
fn most_connections() -> usize {
    const MOST: u64 = 512;
    let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from((descriptors / 16).clamp(1, MOST)).unwrap_or(1)
}

/// Serves the routes of a box from outside, on listeners that belong to its network, until it is dropped: whoever
/// connects there is connected with the route's address and nothing else.
#[derive(Debug)]
pub(super) struct Gate {
    // One for each listener; dropped they end, and their connections with them.
    _listening: JoinSet<()>,
}

impl Gate {
    /// Needs a tokio runtime.
    pub(super) fn open(listeners: Vec<OwnedFd>, routes: &[Route]) -> io::Result<Self> {
        let places = Arc::new(Semaphore::new(most_connections()));
        let mut listening = JoinSet::new();
        for (listener, route) in listeners.into_iter().zip(routes) {
            let listener = TcpListener::from_std(listener.into())?;
            listening.spawn(serve(listener, route.clone(), places.clone()));
        }
        Ok(Self { _listening: listening })
    }
}

async fn serve(listener: TcpListener, route: Route, places: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let inner = loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((inner, _)) => break inner,
                    // Too many descriptors: some will be free again.
                    Err(error) => {
                        tracing::warn!(%route, %error, "a route out of a sandbox accepts nothing");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        };
        let route = route.clone();
        connections.spawn(async move {
            pass(inner, &route).await;
            drop(place);
        });
    }
}

/// Passes bytes both ways. An end of one way is passed on and leaves the other open; a fault is a reset.
async fn pass(mut inner: TcpStream, route: &Route) {
    let passed = async {
        let mut outer = connect(route).await?;
        let _ = (inner.set_nodelay(true), outer.set_nodelay(true));
        copy_bidirectional(&mut inner, &mut outer).await
    };
    if let Err(error) = passed.await {
        tracing::debug!(%route, %error, "a connection out of a sandbox failed");
        let _ = rustix::net::sockopt::set_socket_linger(&inner, Some(Duration::ZERO));
    }
}

#[allow(clippy::disallowed_methods, reason = "the one way out of a sandbox")]
async fn connect(route: &Route) -> io::Result<TcpStream> {
    TcpStream::connect((route.host.as_str(), route.port)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Route {
        text.parse().unwrap()
    }

    #[test]
    fn routes_are_read_and_shown() {
        for text in ["model.example:443", "127.0.0.1:8000", "[::1]:80", "[2001:db8::1]:1"] {
            assert_eq!(route(text).to_string(), text);
        }
        for wrong in ["", "host", "host:", ":1", "host:0", "host:65536", "::1:80", "[::1:80", "a b:1", "a\nb:1"] {
            assert!(wrong.parse::<Route>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_route_has_an_address_of_its_own() {
        let texts =
            ["127.0.0.1:1", "localhost:2", "A.example:443", "b.example:443", "a.example:80", "10.0.0.5:9", "[::1]:3"];
        let plan = Plan::of(&texts.map(route)).unwrap();
        assert_eq!(plan.hosts, "127.0.0.1 localhost\n127.77.0.1 a.example\n127.77.0.2 b.example\n");
        assert_eq!(plan.addresses, ["10.0.0.5".parse::<IpAddr>().unwrap()]);
        let listen: Vec<String> = plan.listen.iter().map(ToString::to_string).collect();
        let expected = [
            "127.0.0.1:1",
            "127.0.0.1:2",
            "127.77.0.1:443",
            "127.77.0.2:443",
            "127.77.0.1:80",
            "10.0.0.5:9",
            "[::1]:3",
        ];
        assert_eq!(listen, expected);
        let twice = Plan::of(&["localhost:1", "127.0.0.1:1"].map(route)).unwrap();
        assert_eq!(twice.listen.len(), 1, "the same place");
    }

    #[test]
    fn what_is_no_place_is_no_route() {
        for wrong in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[a::b::c]:1"] {
            assert!(Plan::of(&[route(wrong)]).is_err(), "{wrong}");
        }
        let many: Vec<Route> = (1..=201).map(|port| Route { host: "localhost".to_owned(), port }).collect();
        assert!(Plan::of(&many).is_err());
    }
}
