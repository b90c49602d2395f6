//! The file of recordings: a line of JSON for each comparison, compressed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use facts::evidence::{Evidence, Fact};
use facts::run::Run;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::work::Request;

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
    ///
    /// # Errors
    /// A line that is not a fact, or no such round.
    pub fn of_journal(text: &str) -> Result<Recording> {
        let fact =
            |(index, line)| Fact::read(line).map_err(|why| anyhow::anyhow!("line {}: {why}", index + 1));
        let facts = text.lines().enumerate().map(fact).collect::<Result<Vec<Fact>>>()?;
        let evidence = Evidence::from_facts(facts);
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
///
/// # Errors
/// If the bytes are not compressed, or a line is not a recording.
pub fn read(bytes: &[u8]) -> Result<Vec<Recording>> {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).context("cannot decompress the recordings")?;
    text.lines().map(|line| serde_json::from_str(line).context("not a recording")).collect()
}

/// A file of recordings.
///
/// # Errors
/// Those of the compressor.
pub fn write(recordings: &[Recording]) -> Result<Vec<u8>> {
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    for recording in recordings {
        writeln!(file, "{}", serde_json::to_string(recording)?)?;
    }
    Ok(file.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repositorys_recordings_are_read_and_have_what_is_played() {
        let all = recorded();
        assert!(all.iter().filter(|recording| recording.is_of_one()).count() >= 6);
        for process in all.iter().flat_map(|recording| &recording.rounds).flatten() {
            assert!(process.load > 0 && process.cold > 0 && process.peak_kb > 0);
            assert!(process.requests.iter().all(Request::is_played));
        }
        assert_eq!(read(&write(all).unwrap()).unwrap(), all);
    }
}
