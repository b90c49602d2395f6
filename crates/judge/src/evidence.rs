//! Everything that was measured in one comparison, and how it came to an end.

use std::collections::BTreeMap;

use protocol::Probed;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::noise::Noise;
use crate::run::{FailureKind, Purpose, Run, RunFailure};
use crate::text::TextScore;

/// One thing that was found out while measuring: a line of `samples.jsonl`. All evidence is made of these, whether it
/// has just been measured or is read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// CPUs' worth of time that a cgroup allows, where it limits it.
    Quota {
        cpus: Option<f64>,
    },
    /// The machine before the first round.
    Before {
        noise: Noise,
    },
    /// A contender that cannot run at all, or not any more.
    Absent {
        framework: String,
        failure: RunFailure,
    },
    NoReference {
        reason: String,
    },
    Run(Box<Run>),
    Probe(Probe),
    /// The latest probe also stands right before this process.
    ProbedBefore {
        process: Process,
    },
    /// Whether the machine can be probed: why not, or `null` since a worker could.
    NoProbe {
        reason: Option<String>,
    },
    /// What else ran during a round, from its first process to its last.
    Watched {
        noise: Noise,
    },
    /// What the guard complained of.
    Complaint {
        reason: String,
    },
    /// The round is done again: its figures so far are put aside.
    PutAside {
        round: usize,
    },
    RoundDone,
    /// How well a contender predicts the plan's text, or why that is not known.
    Text {
        framework: String,
        score: Result<TextScore, String>,
    },
    End {
        end: End,
    },
}

impl Fact {
    /// Reads a line of `samples.jsonl`. The lines of schema 2 hold processes alone and do not say so. The error is
    /// what the line "is not": whoever knows its number says which line.
    pub fn read(line: &str) -> Result<Fact, String> {
        #[derive(Deserialize)]
        struct Tag {
            fact: Option<IgnoredAny>,
        }
        let plain = |error: serde_json::Error| {
            let text = error.to_string();
            let end = text.rfind(" at line ").unwrap_or(text.len());
            format!("not a fact of a run: {}", &text[..end])
        };
        let tag: Tag = serde_json::from_str(line).map_err(plain)?;
        match tag.fact {
            Some(_) => serde_json::from_str(line).map_err(plain),
            None => Ok(Fact::Run(serde_json::from_str(line).map_err(plain)?)),
        }
    }
}

/// Everything that was measured in one comparison, and how it came to an end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The measuring processes of every round, of the attempt that stands.
    pub runs: Vec<Run>,
    /// Those of rounds that were done again because the machine was noisy.
    pub repeated: Vec<Run>,
    pub cold_loads: Vec<Run>,
    pub probes: Vec<Probe>,
    /// Contenders that cannot run at all, by label.
    pub absent: BTreeMap<String, RunFailure>,
    pub no_reference: Option<String>,
    /// How well each contender predicts the plan's text, by label; or why that is not known.
    pub texts: BTreeMap<String, Result<TextScore, String>>,
    /// Complete rounds.
    pub rounds: usize,
    pub end: End,
    /// The machine before the first round.
    pub before: Option<Noise>,
    /// Of every round, from its first process to its last, those done again included.
    pub noises: Vec<Noise>,
    /// What the guard complained of, round by round, whether it was repeated or accepted.
    pub complaints: Vec<String>,
    /// CPUs' worth of time that a cgroup allows, where it limits it.
    pub quota: Option<f64>,
    /// Why the probe of the machine has no figures.
    pub no_probe: Option<String>,
}

impl Evidence {
    /// Takes in one more fact.
    pub fn note(&mut self, fact: Fact) {
        match fact {
            Fact::Quota { cpus } => self.quota = cpus,
            Fact::Before { noise } => self.before = Some(noise),
            Fact::Absent { framework, failure } => {
                self.absent.insert(framework, failure);
            }
            Fact::NoReference { reason } => self.no_reference = Some(reason),
            Fact::Run(run) if run.purpose == Purpose::ColdLoad => self.cold_loads.push(*run),
            Fact::Run(run) => self.runs.push(*run),
            Fact::Probe(probe) => self.probes.push(probe),
            Fact::ProbedBefore { process } => {
                if let Some(probe) = self.probes.last_mut() {
                    probe.before = Some(process);
                }
            }
            Fact::NoProbe { reason } => self.no_probe = reason,
            Fact::Watched { noise } => self.noises.push(noise),
            Fact::Complaint { reason } => self.complaints.push(reason),
            Fact::PutAside { round } => {
                let aside = self.runs.extract_if(.., |run| run.round == round);
                self.repeated.extend(aside);
            }
            Fact::RoundDone => self.rounds += 1,
            Fact::Text { framework, score } => {
                self.texts.insert(framework, score);
            }
            Fact::End { end } => self.end = end,
        }
    }

    /// The evidence of a journal. One without an end is that of a run that was killed.
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Evidence {
        let mut evidence = Evidence { end: End::Killed, ..Evidence::default() };
        for fact in facts {
            evidence.note(fact);
        }
        evidence
    }

    /// The evidence of schema 2, whose journal held processes alone: the last attempt at each round stands, and a
    /// round is done when every one of `labels` that had not failed before has run in it.
    pub fn from_runs(runs: Vec<Run>, labels: &[String]) -> Evidence {
        let mut evidence = Evidence { end: End::Killed, ..Evidence::default() };
        let (measured, loads): (Vec<Run>, Vec<Run>) =
            runs.into_iter().partition(|run| run.purpose == Purpose::Measure);
        evidence.cold_loads = loads;
        let last = |round: usize| {
            measured.iter().filter(|run| run.round == round).map(|run| run.attempt).max().unwrap_or(0)
        };
        let (stand, aside): (Vec<Run>, Vec<Run>) =
            measured.iter().cloned().partition(|run| run.attempt == last(run.round));
        for run in &stand {
            if let Some(failure) = run.failure.as_ref().filter(|f| f.kind != FailureKind::Interrupted) {
                evidence.absent.insert(run.framework.clone(), failure.clone());
            }
        }
        let has_run = |round: usize, label: &String| {
            let left = evidence.absent.contains_key(label);
            left || stand.iter().any(|run| run.round == round && run.framework == *label && run.is_complete())
        };
        let is_there = |round: usize| stand.iter().any(|run| run.round == round);
        evidence.rounds =
            (0..).take_while(|&round| is_there(round) && labels.iter().all(|l| has_run(round, l))).count();
        (evidence.runs, evidence.repeated) = (stand, aside);
        evidence
    }

    /// The complete measuring processes of one contender.
    pub fn complete<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.framework == label && run.is_complete())
    }
}

/// Why no more rounds were done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// As many as were asked for, or as automatic rounds go.
    #[default]
    Planned,
    /// Every verdict on throughput was clear, or its interval narrower than the margin.
    Clear,
    /// The time budget was used up.
    Budget,
    /// Nobody was left to measure.
    NobodyLeft,
    /// The machine stayed noisy: nothing can be said.
    Noisy {
        reason: String,
    },
    Interrupted,
    /// The driver itself was ended before it could say why.
    Killed,
}

impl End {
    /// Whether the decision to stop owes nothing to the figures, so that what is left of the error rate
    /// may be spent.
    pub fn is_last_look(&self) -> bool {
        matches!(self, End::Planned | End::Budget)
    }
}

/// The machine's own speed at one moment, between two processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The process that had just ended, and the one that came next, if nothing ran in between.
    pub after: Option<Process>,
    pub before: Option<Process>,
    pub compute_ns: u64,
    /// How much slower than the fastest so far, as a share.
    pub drift: f64,
    /// Bytes per second: of all sweeps together, and of the fastest.
    pub read_bandwidth: f64,
    pub best_read_bandwidth: f64,
    /// f32 operations per second: of all bursts together, and of the fastest.
    pub arithmetic: f64,
    pub best_arithmetic: f64,
    /// What one sweep read.
    pub bytes: u64,
    pub threads: usize,
}

/// A measuring process, by what tells it from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub round: usize,
    pub attempt: usize,
    pub framework: String,
}

impl Probe {
    /// What a worker saw; beside no process yet.
    pub fn new(probed: &Probed, drift: f64) -> Probe {
        let rate = |work: u64, times: &[u64]| {
            let (mean, best) = (times.iter().sum::<u64>() as f64, times.iter().min().copied().unwrap_or(0));
            let per_second = |ns: f64, count: usize| work as f64 * count as f64 / (ns.max(1.0) / 1e9);
            (per_second(mean, times.len()), per_second(best as f64, 1))
        };
        let (read_bandwidth, best_read_bandwidth) = rate(probed.bytes, &probed.sweeps_ns);
        let (arithmetic, best_arithmetic) = rate(probed.operations, &probed.multiply_adds_ns);
        Probe {
            after: None,
            before: None,
            compute_ns: probed.compute_ns,
            drift,
            read_bandwidth,
            best_read_bandwidth,
            arithmetic,
            best_arithmetic,
            bytes: probed.bytes,
            threads: probed.threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CaseSample, Event, Iteration};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn process() -> Process {
        Process { round: 0, attempt: 0, framework: "a".into() }
    }

    /// One of every kind, with figures that take all digits of a float and all bits of an integer.
    fn facts() -> Vec<Fact> {
        let case =
            CaseSample { first_token_ns: u64::MAX, gaps_ns: vec![(1 << 53) + 1, 1], tokens: vec![vec![7]] };
        let events = vec![
            Event::Loaded(testing::loaded(u64::MAX - 1)),
            Event::Iteration(Iteration { index: 0, cases: vec![case] }),
            Event::Usage(testing::usage()),
        ];
        let mut cold = testing::run("a", 0, Vec::new());
        cold.purpose = Purpose::ColdLoad;
        let mut failed = testing::run("b", 0, Vec::new());
        let failure = RunFailure {
            kind: FailureKind::Failed,
            reason: "it ended".into(),
            last_words: Some("no".into()),
            repeat: None,
        };
        failed.failure = Some(failure.clone());
        failed.noise = Some(Noise { seconds: 0.1 + 0.2, thermal_events: Some(u64::MAX), ..Noise::default() });
        let score =
            TextScore { predicted: 3, nll: 1.0 / 3.0, perplexity: 1e300, mean_kl: None, top1: Some(1.0) };
        let run = |run: Run| Fact::Run(Box::new(run));
        vec![
            Fact::Quota { cpus: Some(1.5) },
            Fact::Before { noise: Noise { seconds: 5e-324, ..Noise::default() } },
            run(cold),
            run(testing::run("a", 0, events)),
            Fact::PutAside { round: 0 },
            Fact::Probe(testing::probe(1e11 / 3.0, 2e10 / 7.0)),
            Fact::ProbedBefore { process: process() },
            run(testing::run("a", 0, vec![Event::Done])),
            run(failed),
            Fact::Absent { framework: "b".into(), failure },
            Fact::NoReference { reason: "nobody can".into() },
            Fact::NoProbe { reason: Some("too old".into()) },
            Fact::Watched { noise: Noise::default() },
            Fact::Complaint { reason: "round 1: loud".into() },
            Fact::RoundDone,
            Fact::Text { framework: "a".into(), score: Ok(score) },
            Fact::Text { framework: "b".into(), score: Err("it did not run".into()) },
            Fact::End { end: End::Noisy { reason: "loud".into() } },
        ]
    }

    #[test]
    fn a_journal_read_back_is_the_same_evidence() {
        let lines: Vec<String> = facts().iter().map(|fact| serde_json::to_string(fact).unwrap()).collect();
        let read: Vec<Fact> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, facts());
        let evidence = Evidence::from_facts(read);
        assert_eq!(evidence, Evidence::from_facts(facts()));
        assert_eq!((evidence.runs.len(), evidence.repeated.len(), evidence.cold_loads.len()), (2, 1, 1));
        assert_eq!((evidence.rounds, evidence.probes[0].before.clone()), (1, Some(process())));
    }

    #[test]
    fn a_journal_without_an_end_is_of_a_run_that_was_killed() {
        let evidence =
            Evidence::from_facts(facts().into_iter().filter(|fact| !matches!(fact, Fact::End { .. })));
        assert_eq!(evidence.end, End::Killed);
    }

    #[test]
    fn a_process_keeps_its_fields_at_the_top_of_its_line() {
        let line = serde_json::to_value(&facts()[3]).unwrap();
        assert_eq!((&line["fact"], &line["purpose"]), (&json!("run"), &json!("measure")));
        assert_eq!((&line["framework"], &line["failure"]), (&json!("a"), &Value::Null));
        assert_eq!(line["events"][1]["cases"][0]["first_token_ns"], json!(u64::MAX));
    }

    #[test]
    fn a_line_of_schema_2_is_a_process() {
        let mut line = serde_json::to_value(&facts()[3]).unwrap();
        let fields = line.as_object_mut().unwrap();
        fields.remove("fact");
        fields.remove("derived");
        assert_eq!(Fact::read(&line.to_string()), Ok(facts().swap_remove(3)));
    }

    #[test]
    fn a_line_that_is_no_fact_is_refused_with_the_reason() {
        let read = |line: &str| Fact::read(line).unwrap_err();
        assert_eq!(read(r#"{"fact":"end"}"#), "not a fact of a run: missing field `end`");
        assert!(read(r#"{"fact":"rumour"}"#).starts_with("not a fact of a run: unknown variant `rumour`"));
        assert_eq!(read(r#"{"round":1}"#), "not a fact of a run: missing field `purpose`");
        assert!(read("{").starts_with("not a fact of a run: EOF"), "{}", read("{"));
    }
}
