//! `photofinish diff`: two runs from anywhere, side by side. It never refuses a pair; it prints what differs between
//! them.

use comparison::judge::records::HISTORY;
use comparison::judge::regression::Thresholds;
use comparison::judge::regression::pairing::Speed;
use comparison::judge::regression::{self, Bar};
use comparison::judge::regression::{Document, Kind, Pair, Side, pairing};
use comparison::plan::Result;

use super::check::{is_measured, named, noise, note_differences, note_failures, told};
use super::compare::results_dir;
use crate::cli::DiffArgs;

pub(crate) fn diff(args: &DiffArgs) -> Result<u8> {
    let places = args.places.find()?;
    let history = results_dir(args.results_dir.as_ref(), &places).join(HISTORY);
    let (a, b) = (named(&args.a, &history, &places)?, named(&args.b, &history, &places)?);
    let thresholds = Thresholds::all(args.margin);
    let pairing = pairing::pair(&a.records, &b.records, false);
    let mut document =
        Document::new(Kind::Diff, Side::new(&a.source, &a.records), Side::new(&b.source, &b.records));
    note_differences(&mut document, &pairing.pairs);
    note_failures(&mut document, &pairing.pairs);
    document.unmeasurable = noise(&pairing.pairs);
    let measured: Vec<Pair<'_>> = pairing.pairs.iter().copied().filter(is_measured).collect();
    let subjects: Vec<_> =
        measured.iter().flat_map(|pair| regression::subjects(*pair, &args.metrics)).collect();
    document.findings =
        regression::unpaired(&subjects, &Bar { thresholds: &thresholds, gates: false, speed: Speed::SAME });
    document.alone = pairing.alone;
    told(&document.concluded(), args.output, None)
}
