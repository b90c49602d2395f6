//! `--dry-run`: resolves a command as far as that is possible without building, fetching or preparing anything, prints
//! the plan, and measures nothing. Of a command that measures nothing the arguments alone are checked.

mod planned;

use judge::study::cell;
use judge::study::report::varied;
use measure::resolve::{self, available_threads};
use measure::{Places, provision};
use plan::{Contender, Failure, Request, Result, Settings, StudyPlan, StudyRequest};

use super::{compare, denoise, encode, generate, parity, plan as planning, run, score, single};
use crate::cli::{Cli, Command, CompareArgs, Format, HereArgs, ModelArgs};
use crate::output::print;
use planned::{Comparison, Planned, PlannedPrompt, Resolved};

pub(super) fn dry_run(cli: &Cli) -> Result<u8> {
    let (planned, format) = match &cli.command {
        None => comparison(&cli.compare)?,
        Some(Command::Compare(args)) => comparison(args)?,
        Some(Command::Sweep(args)) => study(&args.study(), &args.compare)?,
        Some(Command::Ab(args)) => study(&args.study(), &args.compare)?,
        Some(Command::Parity(args)) => {
            let (request, places) = (parity::request(args)?, args.here.places.find()?);
            (comparisons("parity", &request, std::slice::from_ref(&request), &places)?, args.format)
        }
        Some(Command::Run(args)) => {
            let places = args.places.find()?;
            let part = run::part(args, &places)?;
            (cells(&part.plan.asked, &part.cells, &places)?, args.format)
        }
        Some(Command::Plan(args)) => {
            let plan = planning::made(args)?;
            return said(&format!("{}, which is not written\n", planning::described(&plan, args)));
        }
        Some(command) => match job(command)? {
            Some(planned) => planned,
            None => return said("the arguments are valid; nothing was done\n"),
        },
    };
    said(&match format {
        Format::Json => planned.json() + "\n",
        Format::Table | Format::Markdown | Format::Csv => planned.text(),
    })
}

fn said(text: &str) -> Result<u8> {
    print(&foreign::lines(text)).map(|()| 0)
}

fn comparison(args: &CompareArgs) -> Result<(Planned, Format)> {
    compare::check(args)?;
    let places = args.here.places.find()?;
    if let Some(asked) = compare::study_of_suite(args, &places)? {
        return Ok((cells(&asked, &asked.plan(&places)?, &places)?, args.format));
    }
    let request = args.request.request();
    let each = match compare::at_each_precision(&request) {
        none if none.is_empty() => vec![request.clone()],
        each => each,
    };
    Ok((comparisons("compare", &request, &each, &places)?, args.format))
}

/// Comparisons of which each must be possible.
fn comparisons(command: &str, request: &Request, each: &[Request], places: &Places) -> Result<Planned> {
    let resolved = |request: &Request| -> Result<Comparison> {
        let draft = resolve::draft(request, places)?;
        Ok(Comparison::planned(Settings::new(), Resolved::new(&draft)))
    };
    let comparisons: Result<Vec<Comparison>> = each.iter().map(resolved).collect();
    Ok(Planned::new(command, request.to_json(), comparisons?))
}

fn study(asked: &StudyRequest, args: &CompareArgs) -> Result<(Planned, Format)> {
    compare::no_text(args)?;
    let places = args.here.places.find()?;
    Ok((cells(asked, &asked.plan(&places)?, &places)?, args.format))
}

/// The cells of a study. A cell that cannot run is a row with its reason, as in the study itself.
fn cells(asked: &StudyRequest, study: &StudyPlan, places: &Places) -> Result<Planned> {
    let axes = varied(&study.settings());
    let mut comparisons = Vec::new();
    let mut failures = Vec::new();
    for planned in &study.cells {
        let mut comparison = match resolve::draft(&planned.request, places) {
            Ok(draft) => Comparison::planned(planned.settings.clone(), Resolved::new(&draft)),
            Err(failure) => {
                let refused = Comparison::refused(planned.settings.clone(), failure.to_string());
                failures.push(failure);
                refused
            }
        };
        comparison.name = cell::name(&planned.settings, &axes);
        comparisons.push(comparison);
    }
    // The same mistake in every cell is one of the request itself.
    let is_whole = failures.len() == comparisons.len()
        && failures.iter().all(|failure| failure.to_string() == failures[0].to_string());
    match failures.pop() {
        Some(failure) if is_whole => Err(failure),
        _ => {
            let request = serde_json::to_value(asked).map_err(|e| Failure::failed(e.to_string()))?;
            Ok(Planned::new(&study.name, request, comparisons))
        }
    }
}

fn encoding(asked: &encode::Asked<'_>) -> Result<(Planned, Format)> {
    asked.check()?;
    let named = |(index, count)| PlannedPrompt::new(&format!("text {}", index + 1), count);
    let work = (asked.counts().into_iter().enumerate().map(named).collect(), 0);
    let args = asked.args;
    Ok((one(asked.task.name(), &args.framework, &args.model, &args.here, work)?, args.format))
}

/// The commands that give one framework one job.
fn job(command: &Command) -> Result<Option<(Planned, Format)>> {
    let text_or =
        |tokens: &[u32]| vec![PlannedPrompt::new("prompt", Some(tokens.len()).filter(|&count| count > 0))];
    Ok(Some(match command {
        Command::Generate(args) => {
            generate::check(args)?;
            let work = (text_or(&args.tokens), args.new_tokens as usize);
            (one("generate", &args.framework, &args.model, &args.here, work)?, args.format)
        }
        Command::Denoise(args) => {
            denoise::task(args)?;
            let work = (text_or(&args.tokens), args.new_tokens as usize);
            (one("denoise", &args.framework, &args.model, &args.here, work)?, args.format)
        }
        Command::Embed(args) => encoding(&encode::Asked::embed(args))?,
        Command::Rerank(args) => encoding(&encode::Asked::rerank(args))?,
        Command::Classify(args) => encoding(&encode::Asked::classify(args))?,
        Command::Score(args) => {
            let sequences = score::read_sequences(args)?;
            let named = |(index, tokens): (usize, &Vec<u32>)| {
                PlannedPrompt::new(&format!("sequence {}", index + 1), Some(tokens.len()))
            };
            let work = (sequences.iter().enumerate().map(named).collect(), 0);
            (one("score", &args.framework, &args.model, &args.here, work)?, Format::Table)
        }
        Command::Trace(args) => {
            let work = (
                vec![PlannedPrompt::new("prompt", Some(args.prompt_tokens as usize))],
                args.new_tokens() as usize,
            );
            (one("trace", &args.framework, &args.model, &args.here, work)?, Format::Table)
        }
        _ => return Ok(None),
    }))
}

fn one(
    command: &str,
    framework: &str,
    model: &ModelArgs,
    here: &HereArgs,
    (prompts, new_tokens): (Vec<PlannedPrompt>, usize),
) -> Result<Planned> {
    let places = here.places.find()?;
    let (request, engine) = single::asked(framework, model, &places)?;
    provision::find_model(&places, request.model())?;
    let contender = Contender::new(framework.to_owned(), engine, &request, available_threads());
    let resolved = Resolved::of_job(&request, contender, prompts, new_tokens);
    Ok(Planned::new(command, request.to_json(), vec![Comparison::planned(Settings::new(), resolved)]))
}
