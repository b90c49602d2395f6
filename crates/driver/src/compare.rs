//! `driver compare`: plan, measure, judge, report.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::{CompareArgs, Format};
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::report::{self, Report};
use crate::results::Results;
use crate::rounds::Session;
use crate::{environment, interrupt, plan};

pub(crate) fn compare(args: &CompareArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = Places::find(&args.model.places)?;
    let started = OffsetDateTime::now_utc();
    let (plan, bundle) = plan::resolve(args, &places)?;
    let parent = args.results_dir.clone().unwrap_or_else(|| places.results());
    let environment = environment::read(&places, started.format(&Rfc3339).unwrap_or_default());
    let mut session = Session::new(&plan, &bundle, &places, args.model.quiet)?;
    let mut results = Results::create(&parent, started)?;
    results.write("environment.json", &pretty(&environment));
    results.write("plan.json", &pretty(&plan));
    let evidence = session.measure(&mut results)?;
    let report = Report::new(&plan, &bundle, &evidence, environment, results.directory());
    let unsaved = save(&report, &mut results);
    print(&report, args.format)?;
    if let Some(reason) = unsaved {
        return Err(Failure::failed(reason));
    }
    if report.interrupted {
        return Err(Failure::Interrupted);
    }
    Ok(report.exit_code())
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data serialises")
}

fn save(report: &Report, results: &mut Results) -> Option<String> {
    results.write("report.json", &report.json());
    results.write("report.md", &report::markdown(report));
    results.write("report.csv", &report::csv(report));
    results.finish()
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
