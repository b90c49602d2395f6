//! The flags of `photofinish history`, as typed.

use std::path::PathBuf;

use ::history::{Apart, Filter};
use clap::{Args, Subcommand};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, Duration, OffsetDateTime};

use super::outcomes::parse_one;
use super::{Format, Places};
use judge::Metric;

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HistoryArgs {
    #[command(subcommand)]
    pub(crate) command: Option<HistoryCommand>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum HistoryCommand {
    /// Write inference_metrics.json and .csv, in the layout that other tools of this field read, and pictures
    Export {
        /// Directory to write to; it is created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        filters: FilterArgs,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Metrics to show for each record, with their intervals [default: throughput,peak-memory; with --trend: throughput]
    #[arg(long, alias = "metric", value_name = "NAME,…", value_delimiter = ',', value_parser = parse_one)]
    pub(crate) metrics: Vec<Metric>,
    /// Show a figure from commit to commit, with what changed: a table for each machine, framework and case
    #[arg(long)]
    pub(crate) trend: bool,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Filters that select records.
#[derive(Debug, Clone, Args)]
pub(crate) struct FilterArgs {
    /// By label, as in the table: candle, tch-base
    #[arg(long, alias = "framework", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) frameworks: Vec<String>,
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) model: Vec<String>,
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) precision: Vec<String>,
    /// this, the start of a fingerprint, or all
    #[arg(long, value_name = "MACHINE", default_value = "all")]
    pub(crate) machine: String,
    /// Runs that began at this date or later (2026-11-21, or with a time as in RFC 3339; UTC), or in the last N
    /// days (30d)
    #[arg(long, value_name = "DATE|Nd", value_parser = parse_since)]
    pub(crate) since: Option<OffsetDateTime>,
    /// The start of a commit
    #[arg(long, value_name = "COMMIT")]
    pub(crate) commit: Option<String>,
    /// Cells of studies: sweep, "sweep forward", ab
    #[arg(long, value_name = "NAME")]
    pub(crate) study: Option<String>,
    /// Include runs that were noisy, quick or struck, and cells of studies (marked)
    #[arg(long)]
    pub(crate) all: bool,
    /// The last N of the runs that match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) last: Option<u32>,
    /// Directory that holds history.jsonl
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl FilterArgs {
    /// The filter; `this` is the fingerprint of this machine. Without --all, records with a reason of `apart` are kept
    /// apart.
    pub(crate) fn filter(&self, this: &str, apart: &[Apart]) -> Filter {
        let machine = match self.machine.as_str() {
            "all" => "",
            "this" => this,
            fingerprint => fingerprint,
        };
        Filter {
            frameworks: self.frameworks.clone(),
            models: self.model.clone(),
            precisions: self.precision.clone(),
            machine: machine.to_owned(),
            since: self.since,
            commit: self.commit.clone(),
            study: self.study.clone(),
            last: self.last,
            keep_apart: if self.all { Vec::new() } else { apart.to_vec() },
        }
    }
}

fn parse_since(text: &str) -> Result<OffsetDateTime, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok());
    let ago = days.map(|days| OffsetDateTime::now_utc() - Duration::days(days.into()));
    let date = || Date::parse(text, format_description!("[year]-[month]-[day]")).ok();
    ago.or_else(|| date().map(|date| date.midnight().assume_utc()))
        .or_else(|| OffsetDateTime::parse(text, &Rfc3339).ok())
        .ok_or_else(|| "a date (2026-11-21), a time of RFC 3339 (2026-11-21T15:14:00Z), or days (30d)".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_a_time_and_days_are_moments() {
        let at = |text: &str| parse_since(text).map(|moment| moment.unix_timestamp());
        assert_eq!(at("2026-11-21"), Ok(1_795_219_200));
        assert_eq!(at("2026-11-21T01:00:00+01:00"), Ok(1_795_219_200));
        let now = OffsetDateTime::now_utc().unix_timestamp();
        assert!((now - 2 * 86_400 - at("2d").unwrap()).abs() < 60);
        for text in ["", "d", "-1d", "yesterday", "2026-13-01", "70000d"] {
            assert!(at(text).is_err(), "{text}");
        }
    }
}
