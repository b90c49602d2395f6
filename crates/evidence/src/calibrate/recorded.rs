//! Comparisons that were measured, request by request and token by token, to be replayed: a test of the
//! statistics on the noise of real machines.
//!
//! One contender under two names does not differ from itself. It is chance to which of the two a figure
//! belongs, so that the two swap places at random in every replayed round.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::sync::{LazyLock, Mutex};

use anyhow::{Context, Result, bail};
use comparison::facts::evidence::{Evidence, Fact};
use comparison::facts::run::{Run, Turn};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use statistics::{TRIMMED_SLICES, of_turns};

use crate::calibrate::page::Figures;
use crate::calibrate::simulated::Running;

/// Half of the recordings. The second half tests the choices made on the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    First,
    Second,
}

impl Half {
    /// Every other recording: they were made one after another on the same machine.
    fn has(self, index: usize) -> bool {
        (index.is_multiple_of(2)) == (self == Half::First)
    }
}

// How a process's figures are computed of its requests and those of the contenders that it took turns with.

/// The parts of a round that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Requests of a block.
    Requests,
    /// Slices of a block's requests.
    Slices,
}

/// A way to compute a round's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimator {
    pub part: Part,
    /// Share of the parts that is left out at either end.
    pub trimmed: f64,
}

impl Estimator {
    /// The product's.
    pub const USED: Estimator = Estimator { part: Part::Slices, trimmed: TRIMMED_SLICES };

    /// Those that are tried.
    pub fn all() -> Vec<Estimator> {
        let shares = [0.0, 0.125, 0.25, 0.375];
        let of_part = |part| shares.map(|trimmed| Estimator { part, trimmed });
        [Part::Requests, Part::Slices].into_iter().flat_map(of_part).collect()
    }

    /// The figures of each process of a round.
    pub fn figures(&self, round: &[Process]) -> Vec<Figures> {
        let throughput = self.means(round, |request| match self.part {
            Part::Requests => vec![request.speed()],
            Part::Slices => request.slice_speeds(),
        });
        let first = self.means(round, |request| vec![(request.first as f64).ln()]);
        let total = self.means(round, |request| vec![(request.end() as f64).ln()]);
        let of = |(place, process): (usize, &Process)| {
            let [load, cold] = [process.load, process.cold].map(|value| value as f64);
            [load, cold, throughput[place].exp(), first[place].exp(), total[place].exp()]
        };
        round.iter().enumerate().map(of).collect()
    }

    /// The logarithm of a figure of each process, over the parts that all processes have: of each prompt, then over prompts.
    fn means(&self, round: &[Process], parts: impl Fn(&Request) -> Vec<f64>) -> Vec<f64> {
        // By prompt and part: the figure of each process that has one.
        let mut figures: BTreeMap<usize, BTreeMap<(usize, usize), Vec<f64>>> = BTreeMap::new();
        for request in round.iter().flat_map(|process| &process.requests) {
            for (part, figure) in parts(request).into_iter().enumerate() {
                let of_case = figures.entry(request.case).or_default();
                of_case.entry((request.block, part)).or_default().push(figure);
            }
        }
        let mut sums = vec![0.0; round.len()];
        let cases = figures.len().max(1) as f64;
        for of_case in figures.into_values() {
            let parts: Vec<Vec<f64>> =
                of_case.into_values().filter(|figures| figures.len() == round.len()).collect();
            let found = of_turns(&parts, self.trimmed);
            sums.iter_mut().zip(found).for_each(|(sum, figure)| *sum += figure / cases);
        }
        sums
    }
}

impl fmt::Display for Estimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Requests => "requests",
            Part::Slices => "slices",
        };
        write!(f, "{part}, {} % left out at either end", 100.0 * self.trimmed)
    }
}

// The file of recordings: a line of JSON for each comparison, compressed.

/// The repository's recordings.
const RECORDED: &[u8] = include_bytes!("../../recorded.jsonl.gz");

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The labels, in the order of the processes of a round.
    pub contenders: Vec<String>,
    /// `[round][contender]`
    pub rounds: Vec<Vec<Process>>,
}

/// One process. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub load: u64,
    pub cold: u64,
    /// Peak memory in kilobytes.
    pub peak_kb: u64,
    pub requests: Vec<Request>,
}

impl Recording {
    /// Whether all contenders are one under several names.
    pub fn is_of_one(&self) -> bool {
        let name = |label: &str| label.split(' ').next().unwrap_or_default().to_owned();
        self.contenders.len() > 1
            && self.contenders.iter().all(|label| name(label) == name(&self.contenders[0]))
    }

    /// The comparison of a journal: its rounds in which every contender has a complete process.
    pub fn of_journal(text: &str) -> Result<Recording> {
        Recording::new(&evidence(text)?)
    }

    pub(crate) fn new(evidence: &Evidence) -> Result<Recording> {
        let mut rounds: BTreeMap<usize, BTreeMap<&str, Process>> = BTreeMap::new();
        for run in evidence.runs.iter().filter(|run| run.is_complete()) {
            if let Some(process) = process(run) {
                rounds.entry(run.round).or_default().insert(&run.framework, process);
            }
        }
        let most = rounds.values().map(BTreeMap::len).max().unwrap_or(0);
        rounds.retain(|_, round| round.len() == most);
        let contenders = rounds.values().next().into_iter().flat_map(|round| round.keys());
        let contenders: Vec<String> = contenders.map(|&label| label.to_owned()).collect();
        if contenders.len() < 2 {
            bail!("it has no round of two processes that completed");
        }
        let rounds = rounds.into_values().map(|round| round.into_values().collect()).collect();
        Ok(Recording { contenders, rounds })
    }
}

/// What a journal says.
pub(crate) fn evidence(journal: &str) -> Result<Evidence> {
    let fact = |(index, line)| Fact::read(line).map_err(|why| anyhow::anyhow!("line {}: {why}", index + 1));
    let facts = journal.lines().enumerate().map(fact).collect::<Result<Vec<Fact>>>()?;
    Ok(Evidence::from_facts(facts))
}

fn process(run: &Run) -> Option<Process> {
    let us = |ns: u64| ns / 1000;
    Some(Process {
        load: us(run.loaded()?.load_ns),
        cold: us(run.cold_start()?.marks_ns.first()),
        peak_kb: run.peak_bytes()? / 1000,
        requests: run.standing_turns().map(|(_, _, turn)| Request::new(turn)).collect(),
    })
}

/// The repository's recordings, one comparison after another.
pub fn recorded() -> &'static [Recording] {
    static ALL: LazyLock<Vec<Recording>> =
        LazyLock::new(|| read(RECORDED).expect("a test reads the file that is built in"));
    &ALL
}

/// Reads a file of recordings.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<T>> {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).context("cannot decompress the recordings")?;
    text.lines().map(|line| serde_json::from_str(line).context("not a recording")).collect()
}

/// A file of recordings.
pub fn write<T: Serialize>(recordings: &[T]) -> Result<Vec<u8>> {
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    for recording in recordings {
        writeln!(file, "{}", serde_json::to_string(recording)?)?;
    }
    Ok(file.finish()?)
}

// Rounds of recorded comparisons of one contender with itself, drawn at random.

/// The figures of two processes by round.
type Rounds = &'static [[Figures; 2]];

/// The course of one comparison.
pub(crate) struct Replay<'a> {
    decode: &'a [f64],
    left: Vec<&'static [Figures; 2]>,
    all: Rounds,
    random: ChaCha8Rng,
}

impl<'a> Replay<'a> {
    /// Two contenders with request times multiplied by `decode`.
    pub(crate) fn new(decode: &'a [f64], estimator: Estimator, half: Half, seed: u64) -> Self {
        let (all, random) = (rounds(estimator, half), ChaCha8Rng::seed_from_u64(seed));
        Self { decode, left: Vec::new(), all, random }
    }
}

impl Running for Replay<'_> {
    /// The next round, whose order is the recorded one. No round is repeated before all have been used.
    fn round(&mut self, _: &[usize]) -> Vec<Figures> {
        if self.left.is_empty() {
            self.left = self.all.iter().collect();
            self.left.shuffle(&mut self.random);
        }
        let mut round = self.left.pop().map_or(Vec::new(), |round| round.to_vec());
        if self.random.random() {
            round.reverse();
        }
        for ([_, _, throughput, first, total], ratio) in round.iter_mut().zip(self.decode) {
            *throughput /= ratio;
            *first *= ratio;
            *total *= ratio;
        }
        round
    }
}

/// The rounds of one half, with their figures by an estimator, computed once.
fn rounds(estimator: Estimator, half: Half) -> Rounds {
    type Known = BTreeMap<String, Rounds>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    known.entry(format!("{estimator:?} {half:?}")).or_insert_with(|| {
        let of_one = recorded().iter().filter(|recording| recording.is_of_one()).enumerate();
        let halves =
            of_one.filter(|(index, _)| half.has(*index)).flat_map(|(_, recording)| &recording.rounds);
        let pairs = halves.filter_map(|round| <[Figures; 2]>::try_from(estimator.figures(round)).ok());
        Vec::leak(pairs.collect())
    })
}

// Requests that went token by token.

/// One request with figures that count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub case: usize,
    pub block: usize,
    pub first: u64,
    pub gaps: Vec<u64>,
    /// Places of the gaps just after a pause.
    pub lead_in: Vec<usize>,
}

impl Request {
    /// A turn.
    pub(crate) fn new(turn: &Turn) -> Request {
        let us = |ns: u64| ns / 1000;
        Request {
            case: turn.sample.case,
            block: turn.block,
            first: us(turn.sample.marks_ns.first()),
            gaps: turn.sample.marks_ns.gaps().map(us).collect(),
            lead_in: turn.sample.lead_in.clone(),
        }
    }

    /// Microseconds to the last token.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.gaps.iter().sum::<u64>()
    }

    /// The logarithm of its tokens per microsecond.
    pub(crate) fn speed(&self) -> f64 {
        self.speed_of(0, self.gaps.len())
    }

    /// The same of each of its slices.
    pub(crate) fn slice_speeds(&self) -> Vec<f64> {
        self.slices().map(|(from, to)| self.speed_of(from, to)).collect()
    }

    /// The logarithm of the gaps per microsecond between two places.
    fn speed_of(&self, from: usize, to: usize) -> f64 {
        let (mut count, mut sum) = (0_u64, 0);
        for place in (from..to).filter(|place| !self.lead_in.contains(place)) {
            (count, sum) = (count + 1, sum + self.gaps[place]);
        }
        (count as f64 / sum as f64).ln()
    }

    /// From where to where its slices go: each begins with a gap just after a pause. A request without pauses is one.
    fn slices(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut starts = self.lead_in.clone();
        if starts.is_empty() {
            starts.push(0);
        }
        let ends = starts.clone().into_iter().skip(1).chain([self.gaps.len()]);
        let lead_in = self.lead_in.len().min(1);
        // A slice of the gap after the pause alone has no figure.
        starts.into_iter().zip(ends).filter(move |(from, to)| to - from > lead_in)
    }
}

#[cfg(test)]
impl Request {
    /// Whether it has the parts that are replayed.
    pub(crate) fn is_played(&self) -> bool {
        self.first > 0 && !self.gaps.is_empty()
    }

    /// A request with a pause in its middle. Its tokens take so many microseconds before it and twice as many
    /// after it.
    pub(crate) fn with_pause(case: usize, gap: u64) -> Request {
        let gaps = vec![9 * gap, gap, gap, 9 * gap, 2 * gap, 2 * gap];
        Request { case, block: case, first: 3 * gap, gaps, lead_in: vec![0, 3] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(gap: u64) -> Process {
        let request = |case| Request::with_pause(case, gap);
        Process { load: 5, cold: 6, peak_kb: 7, requests: vec![request(0), request(1)] }
    }

    #[test]
    fn what_comes_just_after_a_pause_has_no_part_in_throughput() {
        let round = [process(10), process(20)];
        let figures = Estimator { part: Part::Requests, trimmed: 0.0 }.figures(&round);
        assert!((figures[0][2] - 4.0 / 60.0).abs() < 1e-12, "{figures:?}");
        assert!((figures[0][2] / figures[1][2] - 2.0).abs() < 1e-12);
        let total = |figures: &Figures| figures[4];
        assert!((total(&figures[0]) - 270.0).abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn slices_are_compared_one_by_one() {
        let figures = Estimator { part: Part::Slices, trimmed: 0.0 }.figures(&[process(10), process(20)]);
        // The geometric mean of 1/10 and 1/20.
        assert!((figures[0][2] - (1.0_f64 / 200.0).sqrt()).abs() < 1e-12, "{figures:?}");
    }

    #[test]
    fn the_repositorys_recordings_are_read_and_have_what_is_played() {
        let all = recorded();
        assert!(all.iter().filter(|recording| recording.is_of_one()).count() >= 6);
        for process in all.iter().flat_map(|recording| &recording.rounds).flatten() {
            assert!(process.load > 0 && process.cold > 0 && process.peak_kb > 0);
            assert!(process.requests.iter().all(Request::is_played));
        }
        assert_eq!(read::<Recording>(&write(all).unwrap()).unwrap(), all);
    }
}
