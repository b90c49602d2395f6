//! Memory bandwidth that changes with time, whatever runs.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The speeds of work in the two states, relative to full bandwidth.
pub const SPEEDS: [f64; 2] = [1.0, 0.5];
/// Seconds that a state holds, at least and at most; drawn log-uniformly between.
pub const HOLDS_S: (f64, f64) = (0.1, 20.0);

/// Two states of bandwidth that take turns.
#[derive(Debug, Clone)]
pub struct Weather {
    random: ChaCha8Rng,
    /// Those that may still be asked for.
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
    /// Weather as it is found at any moment. A long stretch is found more often than a short one: the length of the
    /// one that is found has the density of all lengths times itself, which for log-uniform ones is level.
    pub fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let state = random.random_range(0..SPEEDS.len());
        let whole: f64 = random.random_range(HOLDS_S.0..HOLDS_S.1);
        let left = whole * random.random::<f64>();
        let mut weather = Self { random, stretches: VecDeque::new(), state, begins: 0.0 };
        weather.add(left);
        weather
    }

    /// Seconds that work takes which begins at the time `from`, if it takes `work` seconds at full bandwidth. `from`
    /// never decreases from call to call.
    pub fn takes(&mut self, from: f64, work: f64) -> f64 {
        while self.stretch(0).end <= from {
            self.stretches.pop_front();
        }
        let (mut at, mut left, mut index) = (from, work, 0);
        loop {
            let Stretch { end, speed } = self.stretch(index);
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
            let (least, most) = HOLDS_S;
            let holds = least * (most / least).powf(self.random.random());
            self.add(holds);
        }
        self.stretches[index]
    }

    fn add(&mut self, holds: f64) {
        self.begins += holds;
        self.stretches.push_back(Stretch { end: self.begins, speed: SPEEDS[self.state] });
        self.state = (self.state + 1) % SPEEDS.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Full bandwidth for two seconds, half of it for one, and full for a hundred.
    fn known() -> Weather {
        let mut weather = Weather::new(1);
        (weather.stretches, weather.state, weather.begins) = (VecDeque::new(), 0, 0.0);
        [2.0, 1.0, 100.0].into_iter().for_each(|holds| weather.add(holds));
        weather
    }

    #[test]
    fn work_progresses_at_the_speed_of_the_moment() {
        assert_eq!(known().takes(0.0, 1.5), 1.5);
        assert_eq!(known().takes(0.0, 2.25), 2.5);
        assert_eq!(known().takes(1.0, 2.0), 2.5, "one second, half a second in one, half a second");
        assert_eq!(known().takes(2.0, 0.5), 1.0);
        assert_eq!(known().takes(3.0, 0.5), 0.5);
    }

    #[test]
    fn work_that_follows_work_takes_as_long_as_both_together() {
        let (mut whole, mut parts) = (Weather::new(3), Weather::new(3));
        let mut now = 0.0;
        for _ in 0..1000 {
            now += parts.takes(now, 0.7);
        }
        assert!((now - whole.takes(0.0, 700.0)).abs() < 1e-6, "{now}");
        // Half of the time at half the speed: 700/0.75.
        assert!((840.0..1030.0).contains(&now), "{now}");
    }

    #[test]
    fn both_states_are_found_alike_at_the_start() {
        let full = (0..2000).filter(|&seed| Weather::new(seed).takes(0.0, 1e-9) < 1.5e-9).count();
        assert!((900..1100).contains(&full), "{full} of 2000");
    }
}
