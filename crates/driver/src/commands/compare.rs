//! `driver compare`: plan, measure, judge, report.

use std::path::Path;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::{CompareArgs, Format};
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::records::{self, HISTORY};
use crate::report::{self, Report};
use crate::results::Results;
use crate::rounds::Session;
use crate::{configs, environment, interrupt, page, plan, studies};

pub(crate) fn compare(args: &CompareArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = Places::find(&args.model.places)?;
    if let Some(name) = &args.suite {
        let suite = configs::suite(&places.configs, name)?;
        if !suite.command.is_empty() {
            return studies::suite(name, &suite);
        }
    }
    if args.quantize.is_empty() {
        let (report, unsaved) = measure(args, &places, args.results_dir.as_deref())?;
        print(&report, args.format)?;
        return ended(&report, unsaved);
    }
    precisions(args, &places)
}

/// `--quantize`: a comparison at each precision, then what they have in common.
fn precisions(args: &CompareArgs, places: &Places) -> Result<u8> {
    let mut reports = Vec::new();
    let mut worst = 0;
    let mut failure = None;
    for &precision in &args.quantize {
        let mut args = args.clone();
        args.model.precision = vec![precision];
        let measured = measure(&args, places, args.results_dir.as_deref()).and_then(|(report, unsaved)| {
            // Tables are shown as they come; the other formats are one document.
            if args.format == Format::Table {
                crate::print(&format!("{}\n", report::table(&report)))?;
            }
            let ended = ended(&report, unsaved);
            reports.push(report);
            ended
        });
        match measured {
            Ok(code) => worst = code.max(worst),
            // What has been measured is told all the same.
            Err(why) => {
                failure = Some(why);
                break;
            }
        }
    }
    let text = match args.format {
        Format::Table => report::precisions::table(&reports),
        Format::Json => report::precisions::json(&reports) + "\n",
        Format::Markdown => {
            let each: String = reports.iter().map(|report| report::markdown(report) + "\n").collect();
            each + &report::precisions::markdown(&reports)
        }
        Format::Csv => report::precisions::csv(&reports),
    };
    if !reports.is_empty() {
        crate::print(&text)?;
    }
    failure.map_or(Ok(worst), Err)
}

/// One comparison, saved in `parent`; with the reason why something could not be.
pub(crate) fn measure(
    args: &CompareArgs,
    places: &Places,
    parent: Option<&Path>,
) -> Result<(Report, Option<String>)> {
    let started = OffsetDateTime::now_utc();
    let (plan, bundle) = plan::resolve(args, places)?;
    let parent = parent.map_or_else(|| places.results(), Path::to_path_buf);
    let mut environment = environment::read(places, started.format(&Rfc3339).unwrap_or_default());
    if !args.study.command.is_empty() {
        environment.command.clone_from(&args.study.command);
    }
    let mut session = Session::new(&plan, &bundle, places, args.model.quiet)?;
    let mut results = Results::create(&parent, started, "", "samples.jsonl")?;
    results.write("environment.json", &pretty(&environment));
    results.write("plan.json", &pretty(&plan));
    let evidence = session.measure(&mut results)?;
    let report = Report::new(&plan, &bundle, &evidence, environment, results.directory());
    let history = args.results_dir.clone().unwrap_or_else(|| places.results()).join(HISTORY);
    let study = Some(args.study.name.as_str()).filter(|name| !name.is_empty());
    let unsaved = save(&report, &mut results, &history, study);
    Ok((report, unsaved))
}

pub(crate) fn ended(report: &Report, unsaved: Option<String>) -> Result<u8> {
    if let Some(reason) = unsaved {
        return Err(Failure::failed(reason));
    }
    if report.interrupted {
        return Err(Failure::Interrupted);
    }
    Ok(report.exit_code())
}

pub(crate) fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data serialises")
}

/// The run's own files, then its records in the history of all runs: what the history names is there.
fn save(report: &Report, results: &mut Results, history: &Path, study: Option<&str>) -> Option<String> {
    results.write("report.json", &report.json());
    results.write("report.md", &report::markdown(report));
    results.write("report.csv", &report::csv(report));
    let unsaved = results.finish().or_else(|| Some(page::write(results.directory()).err()?.to_string()));
    let kept = history::append(history, &records::records(report, study));
    unsaved.or_else(|| kept.err().map(|error| format!("{error}; the run itself is in {}", report.results)))
}

fn print(report: &Report, format: Format) -> Result<()> {
    let text = match format {
        Format::Table => report::table(report),
        Format::Json => report.json() + "\n",
        Format::Markdown => report::markdown(report),
        Format::Csv => report::csv(report),
    };
    crate::print(&text)
}
