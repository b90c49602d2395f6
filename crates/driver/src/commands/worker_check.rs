//! `photofinish worker-check`: a worker in any language, checked against the protocol.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bundle::Precision;
use comparison::plan::flags;
use comparison::plan::{Contender, Failure, Request, Result};

use super::single::of_texts;
use crate::cli::WorkerCheckArgs;
use crate::measure::provision::{self, Wanted};
use crate::measure::resolve;
use crate::measure::resolve::available_threads;
use crate::measure::worker::Worker;
use crate::measure::{Places, machine, progress, worker};
use crate::output::print;
use crate::worker_check;
use crate::worker_check::Subject;

/// The engine whose logits a worker's are compared with.
const REFERENCE: &str = "candle";

pub(crate) fn worker_check(args: &WorkerCheckArgs) -> Result<u8> {
    progress::listen()?;
    let mut request = args.request();
    if request.device == flags::AUTO {
        request.device = "cpu".to_owned();
    }
    resolve::check(&request.device, &[&args.worker])?;
    let places = args.here.places.find()?.on(&request.device);
    let threads = args.threads.map_or_else(available_threads, |threads| threads as usize);
    let (worker, options) = match file(&args.worker)? {
        Some(binary) => (program(binary, threads, &request), BTreeMap::new()),
        None => configured(&args.worker, threads, &request, &places)?,
    };
    let wanted = Wanted {
        model: request.model(),
        precisions: vec![args.precision],
        reference: false,
        device: &request.device,
        cache: request.cache(),
        sequences: (2, 16),
    };
    let bundle = provision::model(&places, &wanted, args.here.quiet)?;
    of_texts(&bundle)?;
    // In f32 the tolerance is narrow enough to find a mistake in two layers.
    let reference = configs::engine(&places.configs, REFERENCE).ok();
    let reference = reference.filter(|engine| places.binary(&engine.worker).is_file()).map(|engine| {
        let contender = Contender::new(REFERENCE.to_owned(), engine, &request, available_threads());
        worker::worker(&contender, None, &places, (request.timeout_s, request.huge_pages))
    });
    match (&reference, args.precision) {
        (_, precision) if precision != Precision::F32 => {
            protocol::say!("logits are compared with those of {REFERENCE} in f32 alone");
        }
        (None, _) => {
            protocol::say!("the worker of {REFERENCE} is not here: logits are compared with no reference")
        }
        _ => {}
    }
    let subject = Subject {
        worker: &worker,
        reference: reference.as_ref().filter(|_| args.precision == Precision::F32),
        bundle: &bundle,
        precision: args.precision,
        device: &request.device,
        threads,
        jit: request.jit,
        options,
    };
    let held = worker_check::check(&subject, |phase| print(&format!("{phase}\n")))?;
    print(&format!("\n{}\n", worker_check::conclusion(held)))?;
    Ok(u8::from(!held.all()))
}

/// The file of a worker; `None` if this may be a name.
fn file(worker: &str) -> Result<Option<PathBuf>> {
    let path = Path::new(worker);
    match path.canonicalize() {
        Ok(path) if path.is_file() => Ok(Some(path)),
        _ if path.components().count() > 1 => {
            Err(Failure::usage(format!("there is no worker at {worker}: give the path of a program")))
        }
        _ => Ok(None),
    }
}

fn program(binary: PathBuf, threads: usize, request: &Request) -> Worker {
    let environment = worker::environment(threads, request.huge_pages);
    let timeout = Duration::from_secs(request.timeout_s);
    Worker { cpus: machine::choose(threads), ..Worker::new(binary, environment, timeout) }
}

/// The worker of an engine, with its options and its environment.
fn configured(
    name: &str,
    threads: usize,
    request: &Request,
    places: &Places,
) -> Result<(Worker, BTreeMap<String, String>)> {
    let engine = configs::engine(&places.configs, name).map_err(|error| {
        Failure::usage(format!("{name:?} is neither the path of a program nor an engine: {error}"))
    })?;
    provision::workers(places, std::slice::from_ref(&engine), false)?;
    let options = engine.options.clone();
    let contender = Contender::new(name.to_owned(), engine, request, available_threads());
    let settings = (request.timeout_s, request.huge_pages);
    Ok((worker::worker(&contender, machine::choose(threads).as_deref(), places, settings), options))
}
