//! The processes of a server of this machine: their CPU time is the comparison's own, and no other activity.

use std::collections::BTreeSet;

use super::family::{parent, processes};

/// A socket of TCP that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// The processes that listen at the port of a URL, and all below them. Empty where the system does not report, and for
/// processes of other users.
pub(super) fn processes_of(url: &str) -> BTreeSet<u32> {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let port = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(80);
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/net/{name}")));
    let sockets: BTreeSet<String> =
        tables.into_iter().flatten().flat_map(|table| listening(&table, port)).collect();
    let all: Vec<u32> = processes().collect();
    let mut found: BTreeSet<u32> =
        all.iter().copied().filter(|&pid| pid != std::process::id() && holds_one(pid, &sockets)).collect();
    loop {
        let below = |pid: &u32| parent(*pid).is_some_and(|parent| found.contains(&parent));
        let more: Vec<u32> = all.iter().copied().filter(|pid| !found.contains(pid) && below(pid)).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The sockets that listen at a port, as links of `/proc/PID/fd` name them.
fn listening(table: &str, port: u16) -> Vec<String> {
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let own = u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok()?;
        (own == port && *state == LISTENS).then(|| format!("socket:[{inode}]"))
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

fn holds_one(pid: u32, sockets: &BTreeSet<String>) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_at_a_port_are_found() {
        let table = "sl local_address rem_address st tx rx tr tm retrnsmt uid timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 77 1\n\
            1: 0100007F:1F90 0100007F:9C40 01 0:0 0:0 0 0 0 78 1\n\
            2: 0100007F:1F91 00000000:0000 0A 0:0 0:0 0 0 0 79 1\n";
        assert_eq!(listening(table, 8080), ["socket:[77]"]);
        assert!(processes_of("http://127.0.0.1:1").is_empty());
    }
}
