//! The processes that a worker started and that outlive it. They are in its process group, or have its mark
//! in their environment, or hold one of its pipes. A process without any of these has become a child of this
//! program, which adopts its workers' orphans (`PR_SET_CHILD_SUBREAPER`, prctl(2)).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The variable that marks a worker and all processes that it starts.
pub const MARK: &str = "PHOTOFINISH_WORKER";

/// Time for a worker's helpers to end by themselves, once it has ended.
const GRACE: Duration = Duration::from_millis(300);
/// Time between two looks.
const STEP: Duration = Duration::from_millis(5);
/// Most looks for processes to kill: one that forks meanwhile is found by the next look.
const LOOKS: usize = 40;

/// The workers that are alive. Another child of this program in a process group of its own is an orphan of
/// one of them. Locked while a worker is started, and while orphans are looked for.
static LEADERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn leaders() -> MutexGuard<'static, BTreeSet<u32>> {
    LEADERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a worker, in a process group of its own. This program becomes the parent of its orphans; on a
/// system that cannot do that, the first process does.
pub(crate) fn start(spawn: impl FnOnce() -> std::io::Result<Child>) -> std::io::Result<Child> {
    #[cfg(target_os = "linux")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        });
    }
    let mut leaders = leaders();
    let child = spawn()?;
    leaders.insert(child.id());
    Ok(child)
}

/// Whether a process is a child of this program, in a process group of its own, and not a worker.
fn is_orphan(status: &Status, pid: u32, leaders: &BTreeSet<u32>) -> bool {
    let own = std::process::id();
    status.parent == own
        && !leaders.contains(&pid)
        && self::status(own).is_none_or(|own| own.group != status.group)
}

/// A worker and the processes that it started.
#[derive(Debug)]
pub struct Family {
    leader: u32,
    /// The variable that processes of the family have in their environment, unless they changed it.
    mark: String,
    /// The worker's pipes, by inode.
    pipes: Vec<u64>,
    /// When the leader started. Older processes are not of its family.
    since: u64,
    /// Orphans known to be its own.
    orphans: BTreeSet<u32>,
}

impl Family {
    /// The family of a process that has just started with `mark` in its environment.
    pub fn new(leader: u32, mark: &str, pipes: Vec<u64>) -> Family {
        let since = status(leader).map_or(u64::MAX, |status| status.started);
        Family { leader, mark: format!("{MARK}={mark}"), pipes, since, orphans: BTreeSet::new() }
    }

    /// Adopts all present orphans: no other worker has run since the last adoption.
    pub fn take_orphans(&mut self) {
        let leaders = leaders();
        let is_orphan = |pid: &u32| {
            let found = status(*pid).filter(|status| status.started >= self.since);
            found.is_some_and(|status| is_orphan(&status, *pid, &leaders))
        };
        let orphans: Vec<u32> = processes().filter(is_orphan).collect();
        self.orphans.extend(orphans);
    }

    /// Ends the rest of the family after its leader, and returns it, each process by number and name. The
    /// leader must have ended, and not been waited for: until then no other process gets its number.
    pub fn end(&self) -> Vec<String> {
        for _ in 0..GRACE.div_duration_f64(STEP) as usize {
            if self.members().is_empty() {
                return Vec::new();
            }
            if crate::interrupt::requested() {
                break;
            }
            std::thread::sleep(STEP);
        }
        let mut ended = BTreeMap::new();
        for _ in 0..LOOKS {
            let members = self.members();
            if members.is_empty() {
                break;
            }
            for (pid, name) in members {
                kill(pid);
                ended.insert(pid, format!("{pid} ({name})"));
            }
            std::thread::sleep(STEP);
        }
        ended.keys().for_each(|&pid| bury(pid));
        ended.into_values().collect()
    }

    /// The living processes of the family except its leader, by number and name.
    fn members(&self) -> Vec<(u32, String)> {
        let others = processes().filter(|&pid| pid != self.leader && pid != std::process::id());
        let leaders = leaders();
        // Orphans belong to the last leader that is alive.
        let is_last = leaders.iter().all(|&leader| leader == self.leader);
        let member = |pid| {
            let status = status(pid)?;
            let lives = !matches!(status.state, 'Z' | 'X') && status.started >= self.since;
            let is_orphan = || (is_last || self.orphans.contains(&pid)) && is_orphan(&status, pid, &leaders);
            let is_ours = lives
                && (status.group == self.leader || is_orphan() || self.is_marked(pid) || self.has_pipe(pid));
            is_ours.then_some((pid, status.name))
        };
        others.filter_map(member).collect()
    }

    fn is_marked(&self, pid: u32) -> bool {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == self.mark.as_bytes())
    }

    fn has_pipe(&self, pid: u32) -> bool {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let inode = |file: std::fs::DirEntry| -> Option<u64> {
            let target = std::fs::read_link(file.path()).ok()?;
            target.to_str()?.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok()
        };
        files.filter_map(inode).any(|inode| self.pipes.contains(&inode))
    }
}

/// The numbers of all processes.
fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

impl Drop for Family {
    fn drop(&mut self) {
        leaders().remove(&self.leader);
    }
}

/// The fields of `/proc/PID/stat` for a process.
struct Status {
    name: String,
    state: char,
    parent: u32,
    group: u32,
    nice: i32,
    /// Clock ticks from the machine's start to the process's.
    started: u64,
}

fn status(pid: u32) -> Option<Status> {
    parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// State of a process, one letter as in proc_pid_stat(5); `None` if there is no such process.
pub fn state(pid: u32) -> Option<char> {
    Some(status(pid)?.state)
}

/// The nice value of a process (nice(2)); `None` if there is no such process.
pub(crate) fn nice(pid: u32) -> Option<i32> {
    Some(status(pid)?.nice)
}

/// A name may contain anything, parentheses included.
fn parse(stat: &[u8]) -> Option<Status> {
    let stat = String::from_utf8_lossy(stat);
    let (before, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    Some(Status {
        name: before.split_once('(')?.1.escape_debug().to_string(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        nice: fields.get(16)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn kill(pid: u32) {
    #[cfg(unix)]
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // An error means that it ended meanwhile.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = pid;
}

/// Waits for a process that was killed, if it was a child of this program.
fn bury(pid: u32) {
    #[cfg(unix)]
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // An error means that it is another process's child.
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
    #[cfg(not(unix))]
    let _ = pid;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_control_characters_is_read_and_shown_in_one_line() {
        let stat = b"42 (a) (\x1b[2J) S 1 41 42 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 777 0";
        let status = parse(stat).unwrap();
        assert_eq!((status.state, status.group, status.started), ('S', 41, 777));
        assert_eq!(status.name, "a) (\\u{1b}[2J");
        assert!(parse(b"42 (x) S 1").is_none());
    }
}
