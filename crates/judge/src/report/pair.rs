//! The part of a report about two of its contenders.

use super::Report;

impl Report {
    /// The labels of every two contenders that both have figures, each pair in alphabetical order.
    pub fn pairs(&self) -> Vec<[&str; 2]> {
        let measured = self.rows.iter().filter(|row| row.state.has_figures());
        let mut labels: Vec<&str> = measured.map(|row| row.framework.as_str()).collect();
        labels.sort_unstable();
        let mut pairs = Vec::new();
        for (place, a) in labels.iter().enumerate() {
            pairs.extend(labels[place + 1..].iter().map(|b| [*a, *b]));
        }
        pairs
    }

    /// The same report without all other contenders. Figures and verdicts are those of the whole run: its
    /// error rate is that of all pairs.
    pub fn of_pair(&self, pair: [&str; 2]) -> Report {
        let has = |label: &str| pair.contains(&label);
        let mut report = self.clone();
        report.plan.contenders.retain(|contender| has(&contender.label));
        report.rows.retain(|row| has(&row.framework));
        for prompt in &mut report.prompts {
            prompt.rows.retain(|row| has(&row.framework));
        }
        for batch in &mut report.from_text {
            batch.rows.retain(|row| has(&row.framework));
        }
        report.comparisons.retain(|found| has(&found.a) && has(&found.b));
        report.slow_moments.retain(|slow| has(&slow.contender));
        report.floor.retain(|floor| has(&floor.a) && has(&floor.b));
        report.sanity.retain(|flag| has(&flag.framework));
        // They compare a hybrid with its parts, which may not be in the pair.
        report.hybrids.clear();
        report.crossed = None;
        report
    }
}
