//! Figures with their limits, as Markdown.

use std::fmt;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::figures::{METRICS, PROMPT, error_share};
use crate::study::{Options, Share};

/// Share of comparisons in which a weather has to be seen if it makes more of them wrong than are allowed.
const ENOUGH_SEEN: f64 = 0.8;

/// Where a share has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// At most the first, unless the product sees what is wrong in four of five comparisons; in this share it does.
    AtMostUnlessSeen(f64, f64),
    Within(f64, f64),
    /// Shown, not judged.
    None,
}

impl Limit {
    /// Whether the figure itself, not its Monte Carlo interval, is within the limit.
    fn is_kept(self, share: Share) -> bool {
        let value = share.value();
        match self {
            Limit::AtMost(most) => value <= most,
            Limit::AtMostUnlessSeen(most, seen) => value <= most || seen >= ENOUGH_SEEN,
            Limit::AtLeast(least) => value >= least,
            Limit::Within(least, most) => (least..=most).contains(&value),
            Limit::None => true,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtMost(most) => write!(f, "≤ {}", percent(*most, 0)),
            Limit::AtMostUnlessSeen(most, _) => write!(f, "≤ {} or seen", percent(*most, 0)),
            Limit::AtLeast(least) => write!(f, "≥ {}", percent(*least, 0)),
            Limit::Within(least, most) => write!(f, "{:.0}–{}", 100.0 * least, percent(*most, 0)),
            Limit::None => f.write_str("–"),
        }
    }
}

/// One study.
#[derive(Debug, Clone)]
pub struct Table {
    title: &'static str,
    text: String,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    judged: usize,
    failed: usize,
}

impl Table {
    /// The last column of the header names the share; its Monte Carlo interval, limit and result follow.
    pub fn new(title: &'static str, text: impl Into<String>, header: &[&'static str]) -> Self {
        let header: Vec<&str> = header.iter().copied().chain(["95 % MC interval", "limit", ""]).collect();
        Self::plain(title, text, &header)
    }

    /// A table of which nothing is judged.
    pub fn plain(title: &'static str, text: impl Into<String>, header: &[&'static str]) -> Self {
        let header = header.to_vec();
        Self { title, text: text.into(), header, rows: Vec::new(), judged: 0, failed: 0 }
    }

    /// A row of a plain table.
    pub fn plain_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// A cell with a further share of a row, which counts as judged.
    pub fn judge(&mut self, share: Share, limit: Limit) -> String {
        self.judged += 1;
        self.failed += usize::from(!limit.is_kept(share));
        let verdict = if limit.is_kept(share) { "" } else { " FAIL" };
        format!("{}{verdict}", percent(share.value(), 1))
    }

    /// `setting` has a cell for each column before the share.
    pub fn row(&mut self, setting: impl IntoIterator<Item = String>, share: Share, limit: Limit) {
        let (low, high) = share.interval();
        let result = match limit {
            Limit::None => "",
            Limit::AtMostUnlessSeen(most, _) if share.value() > most && limit.is_kept(share) => "seen",
            _ if limit.is_kept(share) => "PASS",
            _ => "FAIL",
        };
        self.judged += usize::from(!result.is_empty());
        self.failed += usize::from(result == "FAIL");
        let figures = [
            percent(share.value(), 2),
            format!("{:.2}–{}", 100.0 * low, percent(high, 2)),
            limit.to_string(),
            result.to_owned(),
        ];
        self.rows.push(setting.into_iter().chain(figures).collect());
    }

    /// Figures beyond their limits.
    pub fn failed(&self) -> usize {
        self.failed
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}\n\n{}\n", self.title, self.text)?;
        writeln!(f, "| {} |", self.header.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.header.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// "2.55 %".
pub fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$} %", 100.0 * share)
}

/// The whole page; the same for the same options and code.
pub fn render(options: &Options, tables: &[Table]) -> String {
    let Options { comparisons, seed } = options;
    let judged: usize = tables.iter().map(|table| table.judged).sum();
    let failed: usize = tables.iter().map(Table::failed).sum();
    let shares: f64 = (0..METRICS.len()).map(error_share).sum();
    let metrics: Vec<String> = (0..METRICS.len())
        .map(|metric| format!("{} {}", METRICS[metric].words(), percent(error_share(metric) / shares, 1)))
        .collect();
    let mut page = format!(
        "# Calibration\n\n\
         The verdicts of the statistics on comparisons with known truth. This page is written by\n\n\
         ```\ncargo xtask calibrate --comparisons {comparisons} --seed {seed}\n```\n\n\
         (version {}, {comparisons} comparisons of each row). {} of {judged} figures are within their \
         limits; {failed} are not and say FAIL. A figure passes by its own value; the Monte Carlo interval \
         (Wilson 1927) says what the true share may be.\n\n
         All comparisons are decided as in the product: rounds in its balanced random order, the state of \
         the machine shown by the other contenders, looks over the rounds that there may be, and an end \
         before the last of them only if throughput, first token and total time are all settled. Each \
         metric's hypotheses have a share of the error rate together: {}. Simulated processes vary as those \
         of `engine-mock` do; the first token is {} of a request. \"Planned\" is a fixed number of rounds, \
         the most that automatic rounds may be, or the seconds that they may take. \"Rounds taken\" is the \
         mean, with the 10 and 90 % quantiles in parentheses. Methods: `docs/explanation/methodology.md` \
         and `crates/statistics`.\n",
        env!("CARGO_PKG_VERSION"),
        judged - failed,
        metrics.join(", "),
        percent(PROMPT, 0),
    );
    for table in tables {
        page.push_str(&format!("\n{table}"));
    }
    page.lines().map(|line| wrapped(line) + "\n").collect()
}

/// A line of prose as lines of at most 120 columns; a row of a table as it is.
fn wrapped(line: &str) -> String {
    if line.starts_with('|') {
        return line.to_owned();
    }
    let mut text = String::new();
    let mut columns = 0;
    for word in line.split(' ') {
        let wide = word.chars().count();
        if columns > 0 && columns + 1 + wide > 120 {
            text.push('\n');
            columns = 0;
        } else if columns > 0 {
            text.push(' ');
            columns += 1;
        }
        text.push_str(word);
        columns += wide;
    }
    text
}

/// Writes a file whole or not at all.
pub fn write(path: &Path, page: impl AsRef<[u8]>) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let save = || -> Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(page.as_ref())?;
        file.persist(path)?;
        Ok(())
    };
    save().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(hits: usize, limit: Limit) -> Table {
        let mut table = Table::new("T", "text", &["setting", "share"]);
        table.row(["s".into()], Share { hits, of: 100 }, limit);
        table
    }

    #[test]
    fn a_figure_beyond_its_limit_fails() {
        let failed = |hits, limit| table(hits, limit).failed();
        assert_eq!((failed(5, Limit::AtMost(0.05)), failed(6, Limit::AtMost(0.05))), (0, 1));
        assert_eq!((failed(90, Limit::AtLeast(0.9)), failed(89, Limit::AtLeast(0.9))), (0, 1));
        assert_eq!((failed(92, Limit::Within(0.93, 0.97)), failed(98, Limit::Within(0.93, 0.97))), (1, 1));
        assert_eq!(failed(100, Limit::None), 0);
    }

    #[test]
    fn the_page_gives_figure_interval_limit_and_result() {
        let options = Options { comparisons: 100, seed: 3 };
        let page = render(&options, &[table(6, Limit::AtMost(0.05))]);
        assert!(page.contains("--comparisons 100 --seed 3"));
        assert!(page.contains("| s | 6.00 % | 2.78–12.48 % | ≤ 5 % | FAIL |"), "{page}");
        assert!(page.contains("0 of 1 figures"));
    }

    #[test]
    fn a_page_that_cannot_be_written_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.md");
        write(&path, "whole").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
        assert!(write(&directory.path().join("missing/page.md"), "x").is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
