//! `photofinish parity`: compares frameworks with a reference, layer by layer, token by token, process by process.

use comparison::judge::report::layer_parity::ParityReport;
use comparison::judge::report::{Facts, Prepared};
use comparison::plan::prompts;
use comparison::plan::{Engines, Failure, PromptSource, Request, Result, RoundsAsked};
use render::{Exporter, JsonText, Markdown, export};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::compare::results_dir;
use super::single::of_texts;
use crate::cli::Format;
use crate::cli::work::ParityArgs;
use crate::measure::results::{self, ENVIRONMENT, PARITY, PLAN, SAMPLES};
use crate::measure::{Places, Results, Session, places, progress, resolve, texts};
use crate::output::{print, screen};

/// Timed processes of each framework: the smallest number that shows variation between them.
const PROCESSES: u32 = 3;

pub(crate) fn parity(args: &ParityArgs) -> Result<u8> {
    let mut request = request(args)?;
    progress::listen()?;
    let started = OffsetDateTime::now_utc();
    let places = args.here.places.find()?;
    include_reference(&mut request, &places)?;
    let (plan, bundle) = resolve::resolve(&request, &places, args.here.quiet)?;
    of_texts(&bundle)?;
    if plan.drawn.is_some() && matches!(request.prompts, PromptSource::Texts(_) | PromptSource::File(_)) {
        return Err(Failure::usage(prompts::absent(&bundle)));
    }
    let encodes = bundle.config().encodes();
    if plan.work.generate().is_none() && !encodes {
        return Err(Failure::usage(
            "parity follows a continuation token by token: of a model of masked diffusion `photofinish compare` checks the \
             logits of every step",
        ));
    }
    let parent = results_dir(args.results_dir.as_ref(), &places);
    let environment = places::read(&places, started.format(&Rfc3339).unwrap_or_default());
    let model = Prepared::new(&bundle);
    let mut results = Results::create(&parent, started, "parity", SAMPLES)?;
    results.write(ENVIRONMENT, results::pretty(&environment));
    results.write(PLAN, results::plan_text(&plan, &model));
    let session = Session::new(&plan, &bundle, &places, results, args.here.quiet)?;
    // What hears predicts no text alone.
    let is_predicted = !encodes && bundle.config().audio.is_none();
    let prose = is_predicted.then(|| texts::text_bundled(&places, &bundle));
    let (found, evidence, mut results) = session.parity(prose)?;
    let directory = results.directory().display().to_string();
    let report = ParityReport::new(&Facts { environment, plan, model, evidence, results: directory }, found);
    results.write(PARITY, JsonText.export(&report));
    results.write("parity.md", Markdown::Whole.export(&report));
    let unsaved = results.finish();
    print(&export(&report, args.format, &screen()))?;
    match unsaved {
        Some(reason) => Err(Failure::failed(reason)),
        None if report.interrupted => Err(Failure::Interrupted),
        None => Ok(report.exit_code()),
    }
}

/// The request for a comparison of the same frameworks on the same prompts. Parity uses its planning.
pub(crate) fn request(args: &ParityArgs) -> Result<Request> {
    if args.format == Format::Csv {
        return Err(Failure::usage("parity prints a table, json or markdown"));
    }
    let mut request = args.model.request();
    request.frameworks.clone_from(&args.frameworks);
    request.prompts = match (args.tokens.as_slice(), args.prompt.as_slice(), &args.prompts) {
        ([], [], None) => PromptSource::Usual,
        ([], [], Some(file)) => PromptSource::File(file.clone()),
        ([], texts, _) => PromptSource::Texts(texts.to_vec()),
        (tokens, _, _) => PromptSource::Tokens(tokens.to_vec()),
    };
    request.chat = args.chat.chat;
    request.new_tokens = args.new_tokens.into_iter().collect();
    request.reference.clone_from(&args.reference);
    request.encode = args.texts.asked();
    request.rounds = Some(RoundsAsked::Fixed(PROCESSES));
    request.cold_load = Some(false);
    request.accept_noise = args.accept_noise;
    Ok(request)
}

/// Adds the reference to the frameworks if it is not among them: it is a row, too, so that its own runs are compared.
fn include_reference(request: &mut Request, places: &Places) -> Result<()> {
    let Some(reference) = request.reference.clone() else { return Ok(()) };
    let named = places.selected(&request.frameworks)?;
    if named.iter().all(|engine| engine.name != reference) {
        if request.frameworks.is_empty() {
            request.frameworks.push(configs::selection::ENGINES.to_owned());
        }
        request.frameworks.push(reference);
    }
    Ok(())
}
