//! Memory bandwidth that changes with time, independent of the processes.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Two states of bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Climate {
    /// The speed of work in each, relative to full bandwidth.
    pub speeds: [f64; 2],
    /// Seconds that each holds, at least and at most; drawn log-uniformly between.
    pub holds_s: [(f64, f64); 2],
}

/// Half of the bandwidth, half of the time.
pub const HARSH: Climate = Climate { speeds: [1.0, 0.5], holds_s: [(0.1, 20.0); 2] };
/// As measured: of 31 tokens of candle, ort and tch each in 20 blocks of 7 rounds on a two-core virtual machine (EPYC), a
/// quarter were made in a fast state that held for 0.04 to 7 s, half of the stretches for less than 0.8 s, and the rest
/// in a slow one that held for 0.07 to 10 s or to the end of the blocks, half of the stretches for more than 1.9 s. A token of tch or candle
/// took 1.33 times as long in the slow state.
pub const PLAYED: Climate = Climate { speeds: [1.0, 0.75], holds_s: [(0.05, 7.0), (0.1, 20.0)] };

/// Two states of bandwidth that alternate.
#[derive(Debug, Clone)]
pub struct Weather {
    climate: Climate,
    random: ChaCha8Rng,
    /// Stretches that may still be needed.
    stretches: VecDeque<Stretch>,
    /// The state of the next stretch, and when it begins.
    state: usize,
    begins: f64,
}

/// A time of one state.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    end: f64,
    speed: f64,
}

impl Weather {
    /// Weather as it is found at any moment. A state is found as often as it holds in the mean, and a long stretch more
    /// often than a short one: the length of the one that is found has the density of all lengths times itself, which
    /// for log-uniform ones is level.
    pub fn new(climate: Climate, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let [first, second] =
            climate.holds_s.map(|(least, most): (f64, f64)| (most - least) / (most / least).ln());
        let state = usize::from(random.random::<f64>() * (first + second) >= first);
        let (least, most) = climate.holds_s[state];
        let whole: f64 = random.random_range(least..most);
        let left = whole * random.random::<f64>();
        let mut weather = Self { climate, random, stretches: VecDeque::new(), state, begins: 0.0 };
        weather.add(left);
        weather
    }

    /// Seconds for work that begins at the time `from` and takes `work` seconds at full bandwidth. `from`
    /// never decreases from call to call. `sensitivity`: the power of the state's speed at which this work is
    /// done; 0 for work that does not depend on bandwidth.
    pub fn takes(&mut self, from: f64, work: f64, sensitivity: f64) -> f64 {
        while self.stretch(0).end <= from {
            self.stretches.pop_front();
        }
        let (mut at, mut left, mut index) = (from, work, 0);
        loop {
            let Stretch { end, speed } = self.stretch(index);
            let speed = speed.powf(sensitivity);
            let done = (end - at) * speed;
            if done >= left {
                return at + left / speed - from;
            }
            left -= done;
            at = end;
            index += 1;
        }
    }

    fn stretch(&mut self, index: usize) -> Stretch {
        while self.stretches.len() <= index {
            let (least, most) = self.climate.holds_s[self.state];
            let holds = least * (most / least).powf(self.random.random());
            self.add(holds);
        }
        self.stretches[index]
    }

    fn add(&mut self, holds: f64) {
        self.begins += holds;
        self.stretches.push_back(Stretch { end: self.begins, speed: self.climate.speeds[self.state] });
        self.state = 1 - self.state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Full bandwidth for two seconds, half of it for one, and full for a hundred.
    fn known() -> Weather {
        let mut weather = Weather::new(HARSH, 1);
        (weather.stretches, weather.state, weather.begins) = (VecDeque::new(), 0, 0.0);
        [2.0, 1.0, 100.0].into_iter().for_each(|holds| weather.add(holds));
        weather
    }

    #[test]
    fn work_progresses_at_the_speed_of_the_moment() {
        assert_eq!(known().takes(0.0, 1.5, 1.0), 1.5);
        assert_eq!(known().takes(0.0, 2.25, 1.0), 2.5);
        assert_eq!(known().takes(1.0, 2.0, 1.0), 2.5, "one second, half a second in one, half a second");
        assert_eq!(known().takes(2.0, 0.5, 1.0), 1.0);
        assert_eq!(known().takes(3.0, 0.5, 1.0), 0.5);
    }

    #[test]
    fn work_that_follows_work_takes_as_long_as_both_together() {
        let (mut whole, mut parts) = (Weather::new(HARSH, 3), Weather::new(HARSH, 3));
        let mut now = 0.0;
        for _ in 0..1000 {
            now += parts.takes(now, 0.7, 1.0);
        }
        assert!((now - whole.takes(0.0, 700.0, 1.0)).abs() < 1e-6, "{now}");
        // Half of the time at half the speed: 700/0.75.
        assert!((840.0..1030.0).contains(&now), "{now}");
    }

    #[test]
    fn work_that_depends_less_on_bandwidth_slows_down_less() {
        assert_eq!(known().takes(2.0, 0.5, 0.0), 0.5);
        assert!((known().takes(2.0, 0.5, 0.5) - 0.5 * 2_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn states_are_found_at_the_start_as_often_as_they_hold() {
        for (climate, share) in [(HARSH, 0.5), (PLAYED, 0.27)] {
            let is_fast = |seed: &u64| Weather::new(climate, *seed).takes(0.0, 1e-9, 1.0) < 1.2e-9;
            let fast = (0..4000).filter(is_fast).count() as f64 / 4000.0;
            assert!((fast - share).abs() < 0.03, "{fast}");
        }
    }
}
