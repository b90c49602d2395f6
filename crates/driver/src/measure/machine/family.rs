//! A worker and all processes that it started: what they use, what somebody changes of them while they wait, and their
//! end.
//!
//! This program adopts its workers' orphans (`PR_SET_CHILD_SUBREAPER`, prctl(2)), so that a family is a worker, what it
//! started, and the orphans that it left. An orphan belongs to the worker whose group or mark it has; one without any, to
//! the worker that ran last.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::counters::{cpu_ticks, cpu_time, peak_bytes};
use super::readings::bytes;
use crate::measure::process::now;

/// The variable that marks a worker and all processes that it starts.
pub const MARK: &str = "PHOTOFINISH_WORKER";

/// Time for a worker's helpers to end by themselves, once it has ended.
const GRACE: Duration = Duration::from_millis(300);

/// Time between two looks.
const STEP: Duration = Duration::from_millis(5);

/// Longest hunt for processes to kill, and how long none is seen before it ends: on a busy machine one may wait as long for
/// a CPU, and then renew itself.
const HUNT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_millis(100);

/// Looks for processes outside of the worker's group that have to be stopped, too.
const STOPS: usize = 20;

/// Looks after which every process of the machine is read again: a number may have passed to another.
const ANEW: usize = 64;

/// The workers that are alive. Locked while one is started, and while orphans are looked for.
static FAMILIES: Mutex<BTreeMap<u32, Kept>> = Mutex::new(BTreeMap::new());

/// What is known of a worker's family.
#[derive(Debug)]
struct Kept {
    /// The variable that its processes have in their environment, unless they changed it.
    mark: String,
    orphans: BTreeSet<u32>,
    /// The process groups in which its processes were seen: one that has ended has no environment any more.
    groups: BTreeSet<u32>,
    /// CPU time of the orphans that have ended, in clock ticks.
    buried: u64,
}

fn families() -> MutexGuard<'static, BTreeMap<u32, Kept>> {
    FAMILIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a worker with `mark` in its environment, in a process group of its own. This program becomes the parent of its
/// orphans; on a system that cannot do that, the first process does.
pub(crate) fn start(mark: &str, spawn: impl FnOnce() -> std::io::Result<Child>) -> std::io::Result<Child> {
    #[cfg(target_os = "linux")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        });
    }
    let mut families = families();
    let child = spawn()?;
    let kept = Kept {
        mark: format!("{MARK}={mark}"),
        orphans: BTreeSet::new(),
        groups: BTreeSet::from([child.id()]),
        buried: 0,
    };
    families.insert(child.id(), kept);
    Ok(child)
}

/// A worker and the processes that it started.
#[derive(Debug)]
pub struct Family {
    leader: u32,
    /// The worker's pipes, by inode.
    pipes: Vec<u64>,
    /// When the leader started. Older processes are not of its family.
    since: u64,
    /// Processes outside of its group that were stopped.
    stopped: BTreeSet<u32>,
}

/// What a family was seen to have.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// CPU time of each process and of those that it has waited for, in seconds.
    each_s: BTreeMap<u32, f64>,
    /// That of orphans that have ended.
    buried_s: f64,
    /// CPUs, nice value and policy of each thread.
    settings: BTreeMap<u32, Settings>,
    /// Whether its leader was stopped, and all outside of its group.
    pub(crate) is_stopped: bool,
}

/// What others can change of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    cpus: Vec<usize>,
    nice: i32,
    /// The policy and its priority (sched(7)).
    policy: [u32; 2],
}

impl Reading {
    /// Whether it has several processes.
    pub(crate) fn has_helpers(&self) -> bool {
        self.each_s.len() > 1
    }

    /// CPU time of all of them since an earlier reading, in seconds; `None` where the system does not report.
    pub(crate) fn used_since(&self, earlier: &Reading) -> Option<f64> {
        let all = |reading: &Reading| reading.each_s.values().sum::<f64>() + reading.buried_s;
        let is_read = !self.each_s.is_empty() && !earlier.each_s.is_empty();
        is_read.then(|| (all(self) - all(earlier)).max(0.0))
    }

    /// What somebody else has changed since an earlier reading, in words: the processes were stopped. Their CPUs are
    /// given back.
    pub(crate) fn changes_since(&self, earlier: &Reading) -> BTreeSet<&'static str> {
        let mut changes = BTreeSet::new();
        if !earlier.is_stopped {
            return changes;
        }
        if !self.is_stopped && !self.each_s.is_empty() {
            changes.insert("continued it");
        }
        for (tid, before) in &earlier.settings {
            let Some(after) = self.settings.get(tid).filter(|after| *after != before) else { continue };
            if after.cpus != before.cpus {
                changes.insert("changed its CPUs");
                super::confinement::give(*tid, &before.cpus);
            }
            if after.nice != before.nice || after.policy != before.policy {
                changes.insert("changed its priority");
            }
        }
        changes
    }
}

impl Family {
    /// The family of a process that has just been started.
    pub fn new(leader: u32, pipes: Vec<u64>) -> Family {
        let since = status(leader).map_or(u64::MAX, |status| status.started);
        Family { leader, pipes, since, stopped: BTreeSet::new() }
    }

    /// Adopts all present orphans: no other worker has run since the last adoption. Returns the living processes.
    pub(crate) fn living(&self) -> BTreeMap<u32, Status> {
        self.look(u64::MAX).0
    }

    /// The same, and whether one was started after that moment, in clock ticks.
    fn look(&self, moment: u64) -> (BTreeMap<u32, Status>, bool) {
        let (mut families, below) = (families(), below());
        for (&pid, status) in &below {
            let is_known = || families.values().any(|kept| kept.orphans.contains(&pid));
            if !is_orphan(status, pid, &families) || is_known() {
                continue;
            }
            let is_of = |kept: &Kept| kept.groups.contains(&status.group) || is_marked(pid, &kept.mark);
            let of = families.iter().find(|(_, kept)| is_of(kept)).map(|(leader, _)| *leader);
            let of = of.or_else(|| (status.started >= self.since).then_some(self.leader));
            if let Some(kept) = of.and_then(|leader| families.get_mut(&leader)) {
                kept.orphans.insert(pid);
                kept.groups.insert(status.group);
            }
        }
        let mut is_newer = false;
        for (leader, kept) in families.iter_mut() {
            // An adopted process keeps its number until it is waited for here.
            let ended =
                kept.orphans.extract_if(.., |pid| below.get(pid).is_none_or(|status| !status.lives()));
            let ended: Vec<u32> = ended.collect();
            let before = if ended.is_empty() { 0 } else { waited_for() };
            for pid in &ended {
                bury(*pid);
                is_newer |= *leader == self.leader && below.get(pid).is_some_and(|one| one.started > moment);
            }
            if !ended.is_empty() {
                kept.buried += waited_for().saturating_sub(before);
            }
        }
        let orphans = families.get(&self.leader).map(|kept| &kept.orphans);
        let is_root = |pid: u32| pid == self.leader || orphans.is_some_and(|orphans| orphans.contains(&pid));
        let parent = |pid: &u32| below.get(pid).map(|status| status.parent);
        let is_ours = |pid: u32| std::iter::successors(Some(pid), parent).take(below.len() + 1).any(is_root);
        let ours: BTreeMap<u32, Status> = below
            .iter()
            .filter(|(pid, one)| one.lives() && is_ours(**pid))
            .map(|(pid, one)| (*pid, one.clone()))
            .collect();
        is_newer |= ours.values().any(|one| one.started > moment);
        if let Some(kept) = families.get_mut(&self.leader) {
            kept.groups.extend(ours.values().map(|one| one.group));
        }
        (ours, is_newer)
    }

    /// Waits until the leader has stopped, stops the processes outside of its group, too, and reads all.
    pub(crate) fn rest(&mut self) -> Reading {
        for _ in 0..STOPS {
            let living = self.living();
            let running = living.iter().filter(|(_, one)| !one.is_stopped());
            let (group, outside): (Vec<u32>, Vec<u32>) =
                running.map(|(pid, _)| *pid).partition(|pid| living[pid].group == self.leader);
            if outside.is_empty() && !group.contains(&self.leader) {
                return self.reading(&living);
            }
            outside.iter().for_each(|&pid| signal(pid, Signal::STOP));
            self.stopped.extend(outside);
            // A signal arrives a moment later.
            std::thread::sleep(Duration::from_micros(100));
        }
        self.read()
    }

    /// Lets those go on that were stopped besides the group.
    pub(crate) fn go_on(&mut self) {
        std::mem::take(&mut self.stopped).into_iter().for_each(|pid| signal(pid, Signal::CONT));
    }

    pub(crate) fn read(&self) -> Reading {
        self.reading(&self.living())
    }

    fn reading(&self, living: &BTreeMap<u32, Status>) -> Reading {
        let Some(ticks) = ticks_per_second() else { return Reading::default() };
        let seconds = |ticks_used: u64| ticks_used as f64 / ticks;
        let each = |(&pid, status): (&u32, &Status)| {
            // Threads count exactly, those that have ended in ticks.
            let [user, system, of_children @ ..] = status.ticks;
            let own = cpu_time(pid).unwrap_or(0.0).max(seconds(user + system));
            (pid, own + seconds(of_children.iter().sum()))
        };
        let is_stopped = |(pid, one): (&u32, &Status)| {
            one.is_stopped() || (*pid != self.leader && one.group == self.leader)
        };
        Reading {
            each_s: living.iter().map(each).collect(),
            buried_s: families().get(&self.leader).map_or(0.0, |kept| seconds(kept.buried)),
            settings: living.keys().flat_map(|pid| threads(*pid)).collect(),
            is_stopped: living.contains_key(&self.leader) && living.iter().all(is_stopped),
        }
    }

    /// The highest resident memory of one of its processes, in bytes, and what all use now, if there are several: a page
    /// that several share counts once (`Pss`, proc_pid_smaps(5)).
    pub(crate) fn memory(&self) -> (Option<u64>, Option<u64>) {
        let living = self.living();
        // Its share of the memory, where the system divides it.
        let of = |pid: &u32| {
            let shared = bytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:");
            shared.or_else(|| bytes(&format!("/proc/{pid}/status"), "VmRSS:"))
        };
        let all = || living.keys().map(of).sum();
        let highest = living.keys().filter_map(|pid| peak_bytes(*pid)).max();
        (highest, if living.len() > 1 { all() } else { None })
    }

    /// Ends the rest of the family after its leader, and returns it, each process by number and name. The
    /// leader must have ended, and not been waited for: until then no other process gets its number.
    pub fn end(&self) -> Vec<String> {
        let moment = uptime();
        let lives = || !self.members().is_empty() | self.look(moment).1;
        let begun = now();
        loop {
            if !lives() {
                return Vec::new();
            }
            if begun.elapsed() >= GRACE || crate::measure::progress::requested() {
                break;
            }
            std::thread::sleep(STEP);
        }
        let mut ended = BTreeMap::new();
        let (begun, mut seen): (Instant, Instant) = (now(), now());
        while begun.elapsed() < HUNT && seen.elapsed() < SILENCE {
            // One that renews itself lives for less than a look at all processes takes: its next is newer than its leader's
            // end, and a child of this program.
            let (adopted, is_newer) = self.look(moment);
            let adopted = adopted.into_iter().filter(|(pid, _)| *pid != self.leader);
            let mut members: Vec<(u32, String)> = adopted.map(|(pid, one)| (pid, one.name)).collect();
            members.iter().for_each(|(pid, _)| signal(*pid, Signal::KILL));
            if members.is_empty() && !is_newer {
                members = self.members();
                members.iter().for_each(|(pid, _)| signal(*pid, Signal::KILL));
            }
            if is_newer || !members.is_empty() {
                seen = now();
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.extend(members.into_iter().map(|(pid, name)| (pid, format!("{pid} ({name})"))));
        }
        ended.keys().for_each(|&pid| bury(pid));
        ended.into_values().collect()
    }

    /// The living processes of the family except its leader, by number and name: those of its group, with its mark or one
    /// of its pipes, and its orphans, wherever this program is not their parent.
    fn members(&self) -> Vec<(u32, String)> {
        let others = processes().filter(|&pid| pid != self.leader && pid != std::process::id());
        let families = families();
        let kept = families.get(&self.leader);
        // Orphans belong to the last leader that is alive.
        let is_last = families.keys().all(|&leader| leader == self.leader);
        let member = |pid| {
            let status = status(pid)?;
            let is_orphan = || {
                (is_last || kept.is_some_and(|kept| kept.orphans.contains(&pid)))
                    && is_orphan(&status, pid, &families)
            };
            let is_ours = status.lives()
                && status.started >= self.since
                && (status.group == self.leader
                    || is_orphan()
                    || kept.is_some_and(|kept| is_marked(pid, &kept.mark))
                    || self.has_pipe(pid));
            is_ours.then_some((pid, status.name))
        };
        others.filter_map(member).collect()
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

impl Drop for Family {
    fn drop(&mut self) {
        families().remove(&self.leader);
    }
}

/// Whether a process is a child of this program, in a process group of its own, and not a worker.
fn is_orphan(status: &Status, pid: u32, families: &BTreeMap<u32, Kept>) -> bool {
    let own = std::process::id();
    status.parent == own
        && !families.contains_key(&pid)
        && self::status(own).is_none_or(|own| own.group != status.group)
}

fn is_marked(pid: u32, mark: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
}

/// All processes that descend from this program, ended ones that were not waited for included. A process once found to
/// be another's is not read again for a while: a machine may have thousands.
pub(super) fn below() -> BTreeMap<u32, Status> {
    static OTHERS: Mutex<(usize, BTreeSet<u32>)> = Mutex::new((0, BTreeSet::new()));
    let mut held = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (looks, others) = &mut *held;
    let (own, present): (u32, BTreeSet<u32>) = (std::process::id(), processes().collect());
    *looks += 1;
    others.retain(|pid| *looks % ANEW > 0 && present.contains(pid));
    let unknown = present.iter().filter(|pid| **pid != own && !others.contains(pid));
    let mut read: BTreeMap<u32, Status> = unknown.filter_map(|&pid| Some((pid, status(pid)?))).collect();
    // The last process above it that was read, and that one's parent.
    let top = |pid: u32| {
        let above = std::iter::successors(Some(pid), |pid| read.get(pid).map(|one| one.parent));
        above.take(read.len() + 1).find(|pid| !read.contains_key(pid))
    };
    let tops: Vec<(u32, Option<u32>)> = read.keys().map(|&pid| (pid, top(pid))).collect();
    for (pid, top) in tops {
        if top != Some(own) {
            read.remove(&pid);
        }
        // Of a parent that has just ended nothing is known.
        if top.is_some_and(|top| top == 0 || others.contains(&top)) {
            others.insert(pid);
        }
    }
    read
}

/// The parent of a process; `None` if there is no such process.
pub(super) fn parent(pid: u32) -> Option<u32> {
    Some(status(pid)?.parent)
}

pub(super) fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The fields of `/proc/PID/stat` for a process or a thread.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    name: String,
    state: char,
    parent: u32,
    group: u32,
    nice: i32,
    policy: [u32; 2],
    /// Clock ticks from the machine's start to the process's.
    started: u64,
    /// Those that it used: in its code, in the system, and those of its children that were waited for.
    pub(super) ticks: [u64; 4],
}

impl Status {
    fn lives(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

fn status(pid: u32) -> Option<Status> {
    parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
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
    let number = |place: usize| fields.get(place).and_then(|field| field.parse().ok()).unwrap_or(0);
    Some(Status {
        name: before.split_once('(')?.1.escape_debug().to_string(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        nice: fields.get(16)?.parse().ok()?,
        policy: [number(38), number(37)],
        started: fields.get(19)?.parse().ok()?,
        ticks: cpu_ticks(&stat)?,
    })
}

/// What can be changed of each thread of a process.
fn threads(pid: u32) -> Vec<(u32, Settings)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let settings = |entry: std::fs::DirEntry| {
        let tid = entry.file_name().to_str()?.parse().ok()?;
        let Status { nice, policy, .. } = parse(&std::fs::read(entry.path().join("stat")).ok()?)?;
        Some((tid, Settings { cpus: super::confinement::given(Some(tid))?, nice, policy }))
    };
    entries.filter_map(settings).collect()
}

/// Clock ticks of all processes that this one has waited for.
fn waited_for() -> u64 {
    status(std::process::id()).map_or(0, |own| own.ticks[2] + own.ticks[3])
}

/// Clock ticks since the machine's start.
fn uptime() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: Option<f64> = text.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    seconds.zip(ticks_per_second()).map_or(u64::MAX, |(seconds, ticks)| (seconds * ticks) as u64)
}

pub(super) fn ticks_per_second() -> Option<f64> {
    #[cfg(target_os = "linux")]
    return Some(rustix::param::clock_ticks_per_second() as f64);
    #[cfg(not(target_os = "linux"))]
    None
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // An error means that it has ended, or is another user's.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits for a process that has ended, if it was a child of this program.
fn bury(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // An error means that it is another process's child.
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
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

    /// Orphans without a mark belong to the family that is looked at, so that tests wait for one another.
    #[cfg(target_os = "linux")]
    static ONE: Mutex<()> = Mutex::new(());

    /// A shell with this script as a worker.
    #[cfg(target_os = "linux")]
    fn family(script: &str) -> (Child, Family) {
        let mark = format!("test.{}", script.len());
        #[expect(clippy::disallowed_methods, reason = "any family will do")]
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).env(MARK, &mark).stdin(std::process::Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = start(&mark, || command.spawn()).unwrap();
        let family = Family::new(child.id(), Vec::new());
        (child, family)
    }

    /// Reads a family until this holds.
    #[cfg(target_os = "linux")]
    fn wait_for(family: &Family, mut holds: impl FnMut(&Reading) -> bool) -> Reading {
        for _ in 0..1000 {
            let reading = family.read();
            if holds(&reading) {
                return reading;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it did not come to pass within 10 s");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_in_a_session_of_its_own_counts_and_waits_with_its_worker() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut child, mut family) = family("setsid sh -c 'while :; do :; done' & wait");
        let first = family.read();
        let busy = wait_for(&family, |reading| reading.used_since(&first).is_some_and(|used| used > 0.05));
        assert!(busy.each_s.len() >= 2 && !busy.is_stopped, "{busy:?}");
        assert!(family.memory().1.is_some(), "there are several");
        signal(family.leader, Signal::STOP);
        let stopped = family.rest();
        assert!(stopped.is_stopped, "{stopped:?}");
        std::thread::sleep(Duration::from_millis(100));
        let after = family.read();
        assert!(after.used_since(&stopped).unwrap() < 0.02 && after.changes_since(&stopped).is_empty());
        let other = [*stopped.settings[&family.leader].cpus.first().unwrap()];
        super::super::confinement::give(family.leader, &other);
        let is_another = stopped.settings[&family.leader].cpus.len() > 1;
        let changes = family.read().changes_since(&stopped);
        assert_eq!(changes.contains("changed its CPUs"), is_another);
        assert!(family.read().changes_since(&stopped).is_empty(), "they are given back");
        family.go_on();
        wait_for(&family, |reading| reading.used_since(&after).is_some_and(|used| used > 0.02));
        child.kill().unwrap();
        assert_eq!(family.end().len(), 1, "the one that is left");
        child.wait().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_helper_that_renews_itself_is_ended_and_none_of_it_is_left_to_be_waited_for() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let renews = "f() { (f &) ; exit; }; f";
        let (mut child, family) = family(&format!("setsid sh -c '{renews}' & sleep 0.2"));
        wait_for(&family, |reading| reading.buried_s > 0.0);
        while status(family.leader).is_some_and(|one| one.lives()) {
            std::thread::sleep(STEP);
        }
        family.end();
        child.wait().unwrap();
        assert!(family.members().is_empty() && !family.look(uptime()).1);
    }
}
