//! Which addresses may be called: public ones, and others that are allowed explicitly.
//!
//! A flow names the URL, but the engine's network decides what's behind it. Without this rule, a flow could reach what
//! only this machine or its neighbours should: a loopback port, a router, a cloud's credentials service. The rule
//! applies to addresses after the name is resolved, because a name proves nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Which addresses may be called besides public ones. As text: `none`, `private`, or a list of addresses, networks
/// (`10.0.0.0/8`), host names and `private`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Loopback and private networks. Not link-local addresses, which a cloud's credentials service has.
    pub private: bool,
    pub listed: Vec<Listed>,
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// A network, by its first bits.
    Network(IpAddr, u8),
    /// Whatever this name stands for.
    Host(String),
}

/// What kind of address it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Public,
    /// Loopback and private networks.
    Private,
    /// Never a server that a flow means: link-local, multicast, reserved, an IPv4 address in disguise …
    Special,
}

const PRIVATE_V4: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
];
const SPECIAL_V4: [(Ipv4Addr, u8); 10] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // A cloud's credentials service within the shared range.
    (Ipv4Addr::new(100, 100, 100, 200), 32),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast, reserved and broadcast.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];
const PRIVATE_V6: [(Ipv6Addr, u8); 2] =
    [(Ipv6Addr::LOCALHOST, 128), (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)];
/// Within [`GLOBAL_V6`], and a credentials service among private ones.
const SPECIAL_V6: [(Ipv6Addr, u8); 5] = [
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128),
    // Teredo and other tunnels, documentation, 6to4.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];
/// All public IPv6 addresses. What is outside (link-local, multicast, IPv4-mapped, NAT64 …) is special.
const GLOBAL_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

impl Allow {
    /// Loopback and private networks too.
    pub fn private() -> Allow {
        Allow { private: true, listed: Vec::new() }
    }

    /// Whether `host`, which stands for `address`, may be called.
    pub fn permits(&self, host: &str, address: IpAddr) -> bool {
        let listed = |listed: &Listed| match listed {
            Listed::Network(network, bits) => within(address, *network, *bits),
            Listed::Host(name) => name.eq_ignore_ascii_case(host.trim_end_matches('.')),
        };
        match kind(address) {
            Kind::Public => true,
            Kind::Private if self.private => true,
            Kind::Private | Kind::Special => self.listed.iter().any(listed),
        }
    }
}

fn kind(address: IpAddr) -> Kind {
    let among_v4 =
        |of: &[(Ipv4Addr, u8)]| of.iter().any(|&(network, bits)| within(address, network.into(), bits));
    let among_v6 =
        |of: &[(Ipv6Addr, u8)]| of.iter().any(|&(network, bits)| within(address, network.into(), bits));
    match address {
        IpAddr::V4(_) if among_v4(&SPECIAL_V4) => Kind::Special,
        IpAddr::V4(_) if among_v4(&PRIVATE_V4) => Kind::Private,
        IpAddr::V4(_) => Kind::Public,
        IpAddr::V6(_) if among_v6(&SPECIAL_V6) => Kind::Special,
        IpAddr::V6(_) if among_v6(&PRIVATE_V6) => Kind::Private,
        IpAddr::V6(_) if among_v6(&[GLOBAL_V6]) => Kind::Public,
        IpAddr::V6(_) => Kind::Special,
    }
}

/// Whether the first `bits` are those of the network.
fn within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        let shift = width.saturating_sub(u32::from(bits));
        shift >= width || a >> shift == b >> shift
    };
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
        _ => false,
    }
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Allow, String> {
        let mut allow = Allow::default();
        if text.trim() == "none" {
            return Ok(allow);
        }
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry {
                "private" => allow.private = true,
                entry => allow.listed.push(listed(entry)?),
            }
        }
        if allow == Allow::default() {
            return Err(format!("{text:?} is an empty list; write none, private or a list"));
        }
        Ok(allow)
    }
}

fn listed(entry: &str) -> Result<Listed, String> {
    let wrong =
        || format!("{entry:?} isn't `private`, an address, a network such as 10.0.0.0/8 or a host name");
    if let Some((network, bits)) = entry.split_once('/') {
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
        return Ok(Listed::Network(network, bits));
    }
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Ok(Listed::Network(address, if address.is_ipv4() { 32 } else { 128 }));
    }
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    // A word such as `none` within a list is a mistake, not a host.
    match entry.chars().all(name) && entry != "none" {
        true => Ok(Listed::Host(entry.to_ascii_lowercase())),
        false => Err(wrong()),
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let private = self.private.then(|| "private".to_owned());
        let listed = self.listed.iter().map(|listed| match listed {
            Listed::Network(network, bits) => format!("{network}/{bits}"),
            Listed::Host(name) => name.clone(),
        });
        let all: Vec<String> = private.into_iter().chain(listed).collect();
        f.write_str(if all.is_empty() { "none".to_owned() } else { all.join(",") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(allow: &str, addresses: &[&str]) -> Vec<bool> {
        let allow: Allow = allow.parse().unwrap();
        addresses.iter().map(|address| allow.permits("host.example", address.parse().unwrap())).collect()
    }

    const PUBLIC: [&str; 6] =
        ["8.8.8.8", "172.15.0.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"];
    const PRIVATE: [&str; 9] = [
        "127.0.0.1",
        "127.9.9.9",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "::1",
        "fd12:3456::1",
    ];
    const SPECIAL: [&str; 19] = [
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "100.100.100.200",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::1",
        "fd00:ec2::254",
    ];

    #[test]
    fn public_addresses_alone_are_called_without_a_rule() {
        assert_eq!(permitted("none", &PUBLIC), [true; 6]);
        assert_eq!(permitted("none", &PRIVATE), [false; 9]);
        assert_eq!(permitted("none", &SPECIAL), [false; 19]);
    }

    #[test]
    fn private_networks_are_not_the_special_ones() {
        assert_eq!(permitted("private", &PUBLIC), [true; 6]);
        assert_eq!(permitted("private", &PRIVATE), [true; 9]);
        assert_eq!(permitted("private", &SPECIAL), [false; 19]);
    }

    #[test]
    fn a_list_allows_what_it_names() {
        let asked = ["10.1.2.3", "10.2.0.0", "169.254.169.254", "::1", "fd00::1", "127.0.0.1"];
        assert_eq!(
            permitted("10.1.0.0/16, 169.254.169.254, ::1", &asked),
            [true, false, true, true, false, false]
        );
        assert_eq!(permitted("0.0.0.0/0", &["127.0.0.1", "::1"]), [true, false]);
        let allow: Allow = "Stock.internal".parse().unwrap();
        let loopback = "127.0.0.1".parse().unwrap();
        assert!(allow.permits("stock.INTERNAL.", loopback));
        assert!(!allow.permits("a.stock.internal", loopback));
    }

    #[test]
    fn a_rule_reads_back_as_it_is_shown_and_a_wrong_one_is_named() {
        for text in ["none", "private", "private,10.0.0.0/8,::1/128,stock.internal"] {
            assert_eq!(text.parse::<Allow>().unwrap().to_string(), text);
        }
        for wrong in ["", ",", "10.0.0.0/33", "10.0.0/8", "a b", "none,private", "http://a", "::1/129"] {
            assert!(wrong.parse::<Allow>().is_err(), "{wrong}");
        }
    }
}
