//! A/B studies: each framework with an optimisation and without it. Every framework is a comparison of its
//! own, paired by round.

use bundle::Precision;
use configs::Engine;
use protocol::KvCache;

use crate::plan::draft::Engines;
use crate::plan::sweep::SweepKind;
use crate::plan::work::encode;
use crate::plan::{
    Arm, Axis, CellPlan, Failure, KvPrecision, PromptSource, Request, Result, RoundsAsked, Setting,
    StudyPlan, StudyView, ThreadsAsked, axes, optimised,
};

/// Default number of new tokens: enough for the KV cache to matter.
const NEW_TOKENS: u32 = 64;

const PROMPT_TOKENS: u32 = 16;

/// Rules that two named variants may differ in.
const VARIANTS: [&str; 3] = ["R2", "R13", "R14"];

/// The layout of batches of texts: the engine's own, and padded to the longest.
const PADDING: &str = "padding";

/// The instructions that the processor has, and those of AVX2 alone.
const ISA: &str = "isa";

/// Attention by a dedicated kernel, and as plain products with a softmax.
const ATTENTION: &str = "attention";

/// Why `sweep jit` has nothing to compare.
const NO_JIT: &str =
    "there is neither a JIT nor graph optimisation to switch off, so both sides would be the same";

/// A switch: the names of both sides, and the rule that it varies, if any.
struct Switch {
    names: [&'static str; 2],
    varied: Option<&'static str>,
    set: fn(&mut [Arm; 2], &Request),
}

fn switch(what: &str) -> Option<Switch> {
    Some(match what {
        "kv-cache" => Switch {
            names: ["KV cache", "none"],
            varied: Some("R13"),
            set: |arms, _| (arms[0].kv_cache, arms[1].kv_cache) = (Some(KvCache::On), Some(KvCache::Off)),
        },
        "jit" => Switch {
            names: ["JIT", "none"],
            varied: Some("R14"),
            set: |arms, _| (arms[0].jit, arms[1].jit) = (Some(true), Some(false)),
        },
        "half" => Switch {
            names: ["half", "f32"],
            varied: Some("R2"),
            set: |arms, request| {
                let asked = request.precisions.first().copied();
                arms[0].precision = Some(asked.unwrap_or(request.half()));
                arms[1].precision = Some(Precision::F32);
            },
        },
        "fused" => Switch {
            names: ["fused", "base"],
            varied: Some("R14"),
            set: |arms, _| arms[1].engine = format!("{}-base", arms[1].engine),
        },
        ATTENTION => Switch {
            names: ["fused attention", "plain products"],
            varied: Some("R14"),
            set: |arms, _| arms[1].engine = format!("{}-eager-attention", arms[1].engine),
        },
        ISA => Switch {
            names: ["all instructions", "AVX2"],
            varied: None,
            set: |arms, _| arms[1].engine = format!("{}-avx2", arms[1].engine),
        },
        PADDING => Switch {
            names: ["own layout", "padded"],
            varied: None,
            set: |arms, _| arms[1].engine = format!("{}-padded", arms[1].engine),
        },
        _ => return None,
    })
}

/// The engines that a request names, or the default ones if it names none.
pub fn engines_of(request: &Request, engines: &dyn Engines) -> Result<Vec<configs::Engine>> {
    if request.study.arms.is_empty() {
        if request.frameworks.is_empty() && engines.is_onnx(request.model()) {
            return engines.selected(&configs::OF_ONNX.map(str::to_owned));
        }
        return engines.selected(&request.frameworks);
    }
    request.study.arms.iter().map(|arm| engines.engine(&arm.engine)).collect()
}

pub(crate) fn plan(what: &[String], asked: &Request, engines: &dyn Engines) -> Result<StudyPlan> {
    let mut request = asked.clone();
    let is_optimised = what == [optimised::NAME];
    if !is_optimised && !request.study.switches.is_empty() {
        return Err(Failure::usage("--switches is for `sweep optimised`: leave it out"));
    }
    if !request.quantize.is_empty() {
        return Err(Failure::usage("--quantize is for `compare`"));
    }
    request.iterations.get_or_insert(1);
    request.cold_load.get_or_insert(false);
    request.study.equal_warmup = true;
    if what == [PADDING] {
        encode::complete_padding(&mut request)?;
        return switched(PADDING, &switch(PADDING).ok_or_else(|| unknown(PADDING))?, request, engines);
    }
    if what == [NAME] {
        if !request.encodes(engines)? {
            complete_prompts(&mut request);
        }
        let named = engines_of(&request, engines)?;
        return mistakes_plan(request, &named, engines);
    }
    let name = what.first().map_or("", String::as_str);
    let has_switch = !is_optimised && what.len() != 2;
    let switch = has_switch.then(|| switch(name).ok_or_else(|| unknown(name))).transpose()?;
    let encodes = request.encodes(engines)?;
    if encodes && is_optimised {
        return Err(encode::no_optimised(&request));
    }
    if !encodes {
        complete(&mut request, is_optimised);
    }
    let Some(switch) = switch else {
        return match what {
            [a, b] => variants(a, b, request, engines),
            _ => optimised::plan(&request, &engines_of(&request, engines)?, engines),
        };
    };
    if name == "half" && request.precisions.first() == Some(&Precision::F32) {
        return Err(Failure::usage(
            "`sweep half` compares 16 bits with f32: name the 16-bit type with --precision",
        ));
    }
    switched(name, &switch, request, engines)
}

fn complete_prompts(request: &mut Request) {
    if !request.names_prompts() {
        request.prompts = PromptSource::Texts(vec![crate::plan::prompts::STUDY_PROMPT.to_owned()]);
    }
}

/// Fills in the prompts to continue, and the number of new tokens.
fn complete(request: &mut Request, is_optimised: bool) {
    complete_prompts(request);
    request.usual_lengths((PROMPT_TOKENS, if is_optimised { optimised::NEW_TOKENS } else { NEW_TOKENS }));
}

/// What is compared with its absence or its opposite, on every framework, in the order of the help.
pub const SWITCHED: [(&str, &str); 9] = [
    ("kv-cache", "The KV cache, or the whole prefix again for every token"),
    ("jit", "Graph optimisation and JIT"),
    ("half", "16 bits, or f32"),
    ("fused", "Fused kernels"),
    (ATTENTION, "Attention by a dedicated kernel, or as plain products"),
    (PADDING, encode::PADDING_HELP),
    (ISA, "All instructions of the processor, or AVX2"),
    (optimised::NAME, "The first four together, and each alone, against none of them"),
    (NAME, "What common mistakes cost, such as a debug build"),
];

fn unknown(what: &str) -> Failure {
    let settings = SweepKind::named().map(|(name, _)| name);
    let switched = SWITCHED.iter().map(|(name, _)| (*name).to_owned());
    let all: Vec<String> = settings.chain(switched).collect();
    let all = all.join(", ");
    Failure::usage(format!("{what:?} alone is no study; there are {all}, or two names of columns"))
}

/// A cell for each place on the axes and each framework.
fn switched(what: &str, switch: &Switch, mut request: Request, engines: &dyn Engines) -> Result<StudyPlan> {
    request.study.varied = switch.varied.map(str::to_owned).into_iter().collect();
    let named = engines_of(&request, engines)?;
    let mut cells = Vec::new();
    for (settings, cell) in axes::cells(&request) {
        for engine in &named {
            let (mut settings, mut cell) = (settings.clone(), cell.clone());
            settings.insert(Axis::Framework, Setting::Name(engine.name.clone()));
            let arm = |name: &str| Arm {
                label: format!("{} ({name})", engine.name),
                engine: engine.name.clone(),
                ..Arm::default()
            };
            let mut arms = switch.names.map(arm);
            (switch.set)(&mut arms, &cell);
            if let Err(error) = engines.engine(&arms[1].engine) {
                let name = &engine.name;
                cell.study.refused = Some(match what {
                    ISA => format!("{name} has no control here that takes instructions away: {error}"),
                    ATTENTION => format!("{name} has no variant here that differs in attention alone"),
                    _ => format!("{name} has no variant to compare it with: {error}"),
                });
            }
            if what == "jit" && engine.compiles.is_none() {
                cell.study.refused = Some(NO_JIT.to_owned());
            }
            if what == "half" {
                settings.remove(&Axis::Precision);
                cell.precisions.clear();
            }
            cell.study.arms = arms.into();
            cells.push(CellPlan { settings, request: cell });
        }
    }
    if what == "jit" && named.iter().all(|engine| engine.compiles.is_none()) {
        let names: Vec<&str> = named.iter().map(|engine| engine.name.as_str()).collect();
        return Err(Failure::usage(format!(
            "{}: {NO_JIT}; files of configs/engines with `compiles` have one, ort among them",
            names.join(", ")
        )));
    }
    let names = switch.names.map(str::to_owned);
    Ok(StudyPlan { name: format!("ab {what}"), view: StudyView::Ab(names), cells })
}

fn variants(a: &str, b: &str, mut request: Request, engines: &dyn Engines) -> Result<StudyPlan> {
    for name in [a, b] {
        engines.engine(name)?;
    }
    if !request.frameworks.is_empty() {
        return Err(Failure::usage("the two variants are the frameworks: leave out --frameworks"));
    }
    request.study.varied = VARIANTS.map(str::to_owned).to_vec();
    let arm = |name: &str, number: &str| Arm {
        label: if a == b { format!("{name}{number}") } else { name.to_owned() },
        engine: name.to_owned(),
        ..Arm::default()
    };
    request.study.arms = vec![arm(a, ""), arm(b, " (2)")];
    let cells = axes::cells(&request).into_iter().map(|(settings, request)| CellPlan { settings, request });
    Ok(StudyPlan {
        name: format!("ab {a} {b}"),
        view: StudyView::Ab([a.to_owned(), b.to_owned()]),
        cells: cells.collect(),
    })
}

// `sweep mistakes`: the cost of common mistakes, each compared with the same engine without it.

/// Its name after `ab`.
pub(crate) const NAME: &str = "mistakes";

/// Names of both sides.
const SIDES: [&str; 2] = ["done right", "mistaken"];

/// Default numbers of prompt tokens and new tokens.
const USUAL_LENGTHS: (u32, u32) = (16, 16);

/// A debug build takes many times as long.
const SHORT_LENGTHS: (u32, u32) = (4, 2);

/// A growing cache costs more the longer a sequence is.
const LONG_LENGTHS: (u32, u32) = (16, 128);

/// Rules that a mistake may break: it is measured for that.
const BREAKABLE_RULES: [&str; 7] = ["R2", "R5", "R10", "R13", "R14", "R16", "R17"];

/// A mistake: its name, and its cause.
struct Mistake {
    name: &'static str,
    /// Whether it is made with models that encode texts, or with those that continue them; `None`: with both.
    encodes: Option<bool>,
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
    Mistake { lengths: SHORT_LENGTHS, ..mistake("debug build", None, Makes::Column("@build:debug")) },
    mistake("build for any processor", None, Makes::Column("@build:generic")),
    mistake("default threads", None, Makes::Threads(ThreadsAsked::Default)),
    mistake("twice as many threads", None, Makes::Threads(ThreadsAsked::Twice)),
    mistake("padding to 512 tokens", Some(true), Makes::Column("-padded-512")),
    mistake("a new session per request", None, Makes::Anew),
    Mistake { lengths: LONG_LENGTHS, ..mistake("a growing cache", Some(false), Makes::Column("-growing")) },
    mistake("weights converted every time", None, Makes::HalfColumn("-converting")),
];

const fn mistake(name: &'static str, encodes: Option<bool>, makes: Makes) -> Mistake {
    Mistake { name, encodes, makes, lengths: USUAL_LENGTHS }
}

/// A cell for each place on the axes, each framework and each mistake that can be made with its model.
pub(crate) fn mistakes_plan(
    mut request: Request,
    named: &[Engine],
    engines: &dyn Engines,
) -> Result<StudyPlan> {
    if engines.is_onnx(request.model()) {
        return Err(Failure::usage(format!(
            "{}: `sweep mistakes` takes a model that continues or encodes texts, and no ONNX file",
            request.model()
        )));
    }
    if !request.serving.is_default() {
        return Err(Failure::usage(
            "`sweep mistakes` has one caller: leave --callers, --rate, --slo and --serve out",
        ));
    }
    let encodes = request.encodes(engines)?;
    request.rounds.get_or_insert(RoundsAsked::Fixed(statistics::MIN_ROUNDS as u32));
    request.study.varied = BREAKABLE_RULES.map(str::to_owned).into();
    if encodes && request.batch.is_empty() {
        request.batch = vec![1];
    }
    let mut cells = Vec::new();
    for (settings, cell) in axes::cells(&request) {
        for engine in named {
            for mistake in MISTAKES.iter().filter(|mistake| mistake.encodes.is_none_or(|of| of == encodes)) {
                let (mut settings, mut cell) = (settings.clone(), cell.clone());
                settings.insert(Axis::Framework, Setting::Name(engine.name.clone()));
                settings.insert(Axis::Mistake, Setting::Name(mistake.name.to_owned()));
                if !encodes {
                    // They belong to the mistake and are no axes.
                    cell.usual_lengths(mistake.lengths);
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
            cell.kv_precision = KvPrecision::F32;
        }
        cell.study.arms = arms.into();
    }
}
