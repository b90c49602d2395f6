//! Slices of requests. The bandwidth of a shared machine changes within a second: contenders that alternate every few
//! tokens have the same conditions, those that alternate whole requests do not. For masked diffusion, a step takes
//! the role of a token.

use std::rc::Rc;

use comparison::facts::evidence::{Fact, Slices};
use comparison::judge::parity::Drawn;
use comparison::plan::{SliceAsked, Work};
use protocol::{Event, Sample};

use crate::measure::proof::Asked;
use crate::measure::running_worker::{RunningWorker, WarmWorker};
use crate::measure::session::Session;

/// Fewest timed tokens of a slice: with fewer, most steps would be those just after a pause.
const FEWEST: usize = 2;

/// Shortest and longest duration of a slice, in seconds. The shorter slices are, the more alike are the
/// contenders' conditions: where a token took 33 ms, a pair's ratio varied from block to block by 3 to 8 %
/// with slices of 5 timed tokens, and by 2 to 3 % with 2.
const SECONDS: (f64, f64) = (0.05, 0.2);

/// Steps just after a pause, which do not count in any figure of decoding.
const LEAD_IN: usize = 1;

impl Session<'_> {
    /// Timed tokens of a slice; `None` if each turn is a whole request. The first block chooses for all.
    pub(crate) fn slice(&mut self, members: &[WarmWorker]) -> Option<usize> {
        if self.recorder.evidence.slices.is_none() && !members.is_empty() {
            let slices = match self.tokens(members) {
                Ok(tokens) => Slices::Tokens { tokens, lead_in: LEAD_IN },
                Err(reason) => Slices::Whole { reason },
            };
            self.recorder.record(Fact::Slices { slices });
        }
        match self.recorder.evidence.slices {
            Some(Slices::Tokens { tokens, .. }) if members.len() > 1 => Some(tokens),
            _ => None,
        }
    }

    /// Timed tokens of a slice, or the reason for whole requests.
    fn tokens(&self, members: &[WarmWorker]) -> Result<usize, String> {
        if let Some(reason) = self.crew.plan.whole_requests() {
            return Err(reason.into());
        }
        let can_pause = |event: &Event| matches!(event, Event::Hello(hello) if hello.slices == Some(true));
        if members.len() < 2 {
            return Err("no other framework waits for a turn".into());
        }
        if let Some(other) = members.iter().find(|member| !member.running.events().iter().any(can_pause)) {
            return Err(format!("{} cannot pause within a request", other.process.framework));
        }
        let (marks, noun) = (self.crew.plan.work.marks(), self.crew.plan.work.mark_noun());
        let later = marks.saturating_sub(1);
        let each_s = || members.iter().filter_map(|member| token_s(member.running.events()));
        let least_s = each_s().fold(f64::INFINITY, f64::min);
        let tokens = match self.crew.plan.slice {
            SliceAsked::Tokens(tokens) => (later > LEAD_IN).then_some(tokens as usize),
            // Runs of a sequence may take microseconds: a slice of them would mostly be a pause.
            _ if matches!(self.crew.plan.work, Work::Graph(_))
                && later as f64 * least_s < 2.0 * SECONDS.0 =>
            {
                None
            }
            _ => tokens(each_s(), later),
        };
        tokens.ok_or_else(|| {
            format!(
                "{marks} {noun}{} too few, or too short, for two slices",
                if marks == 1 { " is" } else { "s are" }
            )
        })
    }
}

/// Seconds of a token in the last iteration of warm-up.
fn token_s(events: &[Event]) -> Option<f64> {
    let warm = events.iter().find_map(|event| match event {
        Event::Warmup(warm) => warm.iterations.last(),
        _ => None,
    })?;
    let steps_s: Vec<f64> = warm.steps_ns().map(|ns| ns as f64 / 1e9).collect();
    statistics::median(&steps_s)
}

/// Timed tokens of the shortest slice that is not too short for the fastest contender, nor too long for the
/// slowest, and that leaves at least two slices in a request with so many `later` marks after its first;
/// `None` if requests are too short for that.
fn tokens(each_s: impl Iterator<Item = f64>, later: usize) -> Option<usize> {
    let longest = (later / 2).saturating_sub(LEAD_IN);
    if longest < FEWEST {
        return None;
    }
    let (least, most) = each_s.fold((f64::INFINITY, 0.0_f64), |(least, most), s| (least.min(s), most.max(s)));
    let steps = |seconds: f64, each: f64| (seconds / each).clamp(1.0, later as f64);
    let long_enough = steps(SECONDS.0, least).ceil() as usize;
    let steps = long_enough.min(steps(SECONDS.1, most).floor() as usize);
    Some(steps.saturating_sub(LEAD_IN).clamp(FEWEST, longest))
}

/// A request in progress, slice by slice.
#[derive(Default)]
pub(crate) struct Sliced {
    case: usize,
    /// Its place within the block.
    pub(crate) position: usize,
    /// Its input; `None` for the job's.
    asked: Option<Rc<Asked>>,
    marks: usize,
    lead_in: Vec<usize>,
    /// How long what precedes the request took by the driver's clock, in nanoseconds.
    pub(crate) prepared_ns: Option<u64>,
    /// How long each slice took by the driver's clock, in nanoseconds, its logits included.
    pub(crate) seen_ns: Vec<u64>,
    pub(crate) drawn: Vec<Drawn>,
    /// Its answer, once it is complete.
    pub(crate) sample: Option<Sample>,
}

impl Sliced {
    /// A request of a case at this place, of which nothing is done.
    pub(crate) fn new(case: usize, position: usize, asked: Option<Rc<Asked>>) -> Sliced {
        Sliced { case, position, asked, ..Sliced::default() }
    }

    /// The next slice, of so many timed tokens, or the whole request, and then the logits of the `drawn` tokens.
    /// `None` if the worker failed.
    pub(crate) fn next(
        &mut self,
        running: &mut RunningWorker,
        (drawn, batch): (Option<Vec<u32>>, usize),
        slice: Option<usize>,
    ) -> Option<()> {
        // The worker learns what it is fed when it has nothing left to do before the first mark.
        if self.marks == 0 {
            self.prepared_ns = Some(running.prepare(self.case)?);
        }
        let asked = self.asked.as_deref();
        let (answer, ns) = match slice {
            None => {
                let (sample, ns) = running.request(self.case, asked.map(Asked::whole))?;
                (Some(sample), ns)
            }
            Some(timed) => {
                let more = timed + LEAD_IN;
                let (input, marks) = match self.marks {
                    0 => (asked.map(Asked::first), 1),
                    made => {
                        self.lead_in.extend((0..LEAD_IN).map(|step| made - 1 + step));
                        (asked.and_then(|asked| asked.later(made, more)), made + more)
                    }
                };
                let (answer, ns) = running.slice((self.case, input), more, marks)?;
                self.marks = marks;
                let places = |sample: Sample| {
                    let places =
                        self.lead_in.iter().copied().filter(|&place| place + 1 < sample.marks_ns.len());
                    Sample { lead_in: places.collect(), ..sample }
                };
                (answer.map(places), ns)
            }
        };
        let made = answer.as_ref().map_or(self.marks, |sample| sample.marks_ns.len());
        let mut logits_ns = 0;
        if let (Some(tokens), Some(step)) = (drawn, made.checked_sub(1)) {
            let (values, ns) = running.logits(self.case, (&tokens, batch))?;
            logits_ns = ns;
            self.drawn.push(Drawn { step, tokens, values });
        }
        self.seen_ns.push(ns + logits_ns);
        self.sample = answer;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_neither_too_short_for_the_fastest_nor_too_long_for_the_slowest() {
        let of = |each_ms: &[f64], later| tokens(each_ms.iter().map(|ms| ms / 1e3), later);
        assert_eq!(of(&[15.0, 20.0], 31), Some(3));
        assert_eq!(of(&[33.0], 31), Some(2));
        assert_eq!(of(&[1.0, 2.0], 255), Some(49), "50 ms of the fastest");
        assert_eq!(of(&[1.0, 100.0], 255), Some(2), "200 ms of the slowest");
        assert_eq!(of(&[4.0], 15), Some(6), "two slices at least");
        assert_eq!([0, 5].map(|later| of(&[15.0], later)), [None; 2]);
    }
}
