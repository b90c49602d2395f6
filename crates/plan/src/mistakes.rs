//! `ab mistakes`: the cost of common mistakes, each compared with the same engine without it.

use bundle::Precision;
use configs::Engine;

use crate::engines::Engines;
use crate::{
    Arm, Axis, CellPlan, Failure, KvPrecision, Request, Result, RoundsAsked, Setting, StudyPlan, StudyView,
    ThreadsAsked, axes,
};

/// Its name after `ab`.
pub(crate) const NAME: &str = "mistakes";
/// Names of both sides.
const SIDES: [&str; 2] = ["done right", "mistaken"];
/// Default numbers of prompt tokens and new tokens.
const USUAL: (u32, u32) = (16, 16);
/// A debug build takes many times as long.
const SHORT: (u32, u32) = (4, 2);
/// A growing cache costs more the longer a sequence is.
const LONG: (u32, u32) = (16, 128);
/// Rules that a mistake may break: it is measured for that.
const VARIED: [&str; 7] = ["R2", "R5", "R10", "R13", "R14", "R16", "R17"];

/// The models that a mistake can be made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Any,
    Decoders,
    Encoders,
}

/// A mistake: its name, and its cause.
struct Mistake {
    name: &'static str,
    of: Of,
    makes: Makes,
    /// Numbers of prompt tokens and new tokens.
    lengths: (u32, u32),
}

/// How an engine is made to make the mistake.
enum Makes {
    /// A column that makes it: the suffix of the engine's name.
    Column(&'static str),
    /// The same at 16 bits, compared with the engine in f32: both compute in f32.
    HalfColumn(&'static str),
    Threads(ThreadsAsked),
    /// The model is loaded for every request.
    Anew,
}

const MISTAKES: [Mistake; 8] = [
    Mistake { lengths: SHORT, ..mistake("debug build", Of::Any, Makes::Column("@build:debug")) },
    mistake("build for any processor", Of::Any, Makes::Column("@build:generic")),
    mistake("default threads", Of::Any, Makes::Threads(ThreadsAsked::Default)),
    mistake("twice as many threads", Of::Any, Makes::Threads(ThreadsAsked::Twice)),
    mistake("padding to 512 tokens", Of::Encoders, Makes::Column("-padded-512")),
    mistake("a new session per request", Of::Any, Makes::Anew),
    Mistake { lengths: LONG, ..mistake("a growing cache", Of::Decoders, Makes::Column("-growing")) },
    mistake("weights converted every time", Of::Any, Makes::HalfColumn("-converting")),
];

const fn mistake(name: &'static str, of: Of, makes: Makes) -> Mistake {
    Mistake { name, of, makes, lengths: USUAL }
}

/// A cell for each place on the axes, each framework and each mistake that can be made with its model.
pub(crate) fn plan(mut request: Request, named: &[Engine], engines: &dyn Engines) -> Result<StudyPlan> {
    if configs::is_onnx(request.model()) {
        return Err(Failure::usage(format!(
            "{}: `ab mistakes` takes a model that continues or encodes texts, and no ONNX file",
            request.model()
        )));
    }
    if !request.serving.is_default() {
        return Err(Failure::usage(
            "`ab mistakes` has one caller: leave --callers, --rate, --slo and --serve out",
        ));
    }
    let encodes = request.encodes(engines)?;
    request.rounds.get_or_insert(RoundsAsked::Fixed(statistics::MIN_ROUNDS as u32));
    request.study.varied = VARIED.map(str::to_owned).into();
    if encodes && request.batch.is_empty() {
        request.batch = vec![1];
    }
    let mut cells = Vec::new();
    for (settings, cell) in axes::cells(&request) {
        for engine in named {
            for mistake in MISTAKES.iter().filter(|mistake| mistake.is_made(encodes)) {
                let (mut settings, mut cell) = (settings.clone(), cell.clone());
                settings.insert(Axis::Framework, Setting::Name(engine.name.clone()));
                settings.insert(Axis::Mistake, Setting::Name(mistake.name.to_owned()));
                if !encodes {
                    mistake.complete(&mut cell);
                }
                mistake.make(engine, &mut cell, engines);
                cells.push(CellPlan { settings, request: cell });
            }
        }
    }
    let view = StudyView::Ab(SIDES.map(str::to_owned));
    Ok(StudyPlan { name: format!("ab {NAME}"), view, cells })
}

impl Mistake {
    fn is_made(&self, encodes: bool) -> bool {
        self.of == Of::Any || (self.of == Of::Encoders) == encodes
    }

    /// Fills in lengths that were not asked for. They belong to the mistake and are no axes.
    fn complete(&self, cell: &mut Request) {
        cell.usual_lengths(self.lengths);
    }

    /// Gives a cell its two sides, or the reason why it has none.
    fn make(&self, engine: &Engine, cell: &mut Request, engines: &dyn Engines) {
        let is_reference = engine.reference;
        let engine = &engine.name;
        let side = |name: &str| Arm {
            label: format!("{engine} ({name})"),
            engine: engine.clone(),
            ..Arm::default()
        };
        // In a history, the arms of different mistakes must differ.
        let mut arms = [side(SIDES[0]), side(self.name)];
        match self.makes {
            Makes::Column(behind) | Makes::HalfColumn(behind) => {
                arms[1].engine = format!("{engine}{behind}");
                if let Err(error) = engines.engine(&arms[1].engine) {
                    let why = format!("{engine} has no variant that makes this mistake: {error}");
                    cell.study.refused = Some(why);
                }
            }
            Makes::Threads(ThreadsAsked::Default) if is_reference => {
                cell.study.refused = Some(format!("{engine} always gets a number of threads here"));
            }
            Makes::Threads(threads) => arms[1].threads = Some(threads),
            Makes::Anew => arms[1].anew = true,
        }
        if let Makes::HalfColumn(_) = self.makes {
            let asked = cell.precisions.first().copied().filter(|&asked| asked != Precision::F32);
            arms[0].precision = Some(Precision::F32);
            arms[1].precision = Some(asked.unwrap_or(cell.half()));
            cell.keep_in(KvPrecision::F32);
        }
        cell.study.arms = arms.into();
    }
}
