//! What is read from a study's report: a small set of typed readers. Each gives a figure or the reason why there is
//! none.

use judge::Metric;
use judge::study::StudyReport;
use plan::{Axis, Settings};
use serde::Deserialize;

use crate::cells::{cell, quiet_row, row};
use crate::found::{Found, Outcome};
use crate::{pairs, rows};

/// One reader, with what it needs. `at` names the cell by its place on the axes, as far as there are several.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reading {
    /// How many times better `a` is than `b`, from the verdict on the pair.
    Advantage {
        a: String,
        b: String,
        metric: Metric,
        #[serde(default)]
        at: Settings,
    },
    /// By which share `a` needs less than `b` (time or memory), from the same verdict.
    Less {
        a: String,
        b: String,
        metric: Metric,
        #[serde(default)]
        at: Settings,
    },
    /// How many times as large the advantage of `a` is at `at` as at `from`.
    Growth { a: String, b: String, metric: Metric, from: Settings, at: Settings },
    /// A contender's figure.
    Figure {
        framework: String,
        metric: Metric,
        #[serde(default)]
        at: Settings,
    },
    /// One figure ÷ another.
    Ratio(Quotient),
    /// By which share one figure is less than another.
    Saving(Quotient),
    /// How a figure grows along an axis.
    Scaling {
        framework: String,
        axis: Axis,
        of: rows::Growth,
        #[serde(default)]
        at: Settings,
    },
    /// What a script with too short a warm-up would have reported.
    /// `over` divides it by the same of another contender.
    ShortWarmup {
        framework: String,
        of: rows::Short,
        over: Option<String>,
        #[serde(default)]
        at: Settings,
    },
    /// Time of this iteration of a process, counted from 1, ÷ that of a steady one.
    Iteration {
        framework: String,
        iteration: usize,
        #[serde(default)]
        at: Settings,
    },
    /// What compiling costs a contender beside itself without its JIT.
    Compiling {
        framework: String,
        of: rows::Compiling,
        #[serde(default)]
        at: Settings,
    },
    /// The first time of a prompt of this many tokens, beside later ones.
    NewPrompt {
        framework: String,
        tokens: usize,
        of: rows::NewPrompt,
        #[serde(default)]
        at: Settings,
    },
    /// A part of a contender's memory, in bytes.
    Memory {
        framework: String,
        part: rows::Part,
        #[serde(default)]
        at: Settings,
    },
    /// Perplexity of the bundled text.
    Perplexity {
        framework: String,
        #[serde(default)]
        at: Settings,
    },
    /// The product of these factors: arithmetic on what a source says of a model.
    Product { factors: Vec<f64> },
}

/// A figure of one contender and another figure. What `over` leaves out is as in the first.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotient {
    pub framework: String,
    pub metric: Metric,
    #[serde(default)]
    pub at: Settings,
    pub over: Over,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Over {
    pub framework: Option<String>,
    pub metric: Option<Metric>,
    pub at: Option<Settings>,
}

impl Reading {
    pub(crate) fn is_arithmetic(&self) -> bool {
        matches!(self, Reading::Product { .. })
    }

    /// Reads the figure. `report` is that of its run.
    pub fn read(&self, report: Option<&StudyReport>) -> Outcome {
        if let Reading::Product { factors } = self {
            return Ok(Found::alone(factors.iter().product()));
        }
        let report = report.ok_or("it was not run")?;
        match self {
            Reading::Product { factors } => Ok(Found::alone(factors.iter().product())),
            Reading::Advantage { a, b, metric, at } => pairs::advantage(cell(report, at)?, a, b, *metric),
            Reading::Less { a, b, metric, at } => {
                Ok(pairs::advantage(cell(report, at)?, a, b, *metric)?.map(|times| 1.0 - 1.0 / times))
            }
            Reading::Growth { a, b, metric, from, at } => {
                let [small, large] = [from, at].map(|at| pairs::advantage(cell(report, at)?, a, b, *metric));
                Ok(pairs::quotient(large?, small?))
            }
            Reading::Figure { framework, metric, at } => rows::figure(cell(report, at)?, framework, *metric),
            Reading::Ratio(quotient) => quotient.read(report),
            Reading::Saving(quotient) => Ok(quotient.read(report)?.map(|ratio| 1.0 - ratio)),
            Reading::Scaling { framework, axis, of, at } => rows::scaling(report, framework, *axis, of, at),
            Reading::ShortWarmup { framework, of, over, at } => {
                let figure = |framework| rows::short_warmup(quiet_row(report, at, framework)?.1, *of);
                let other = over.as_ref().map(|other| figure(other)).transpose()?;
                let figure = figure(framework)?;
                Ok(other.map_or(figure, |other| rows::quotient(figure, other)))
            }
            Reading::Iteration { framework, iteration, at } => {
                rows::iteration(quiet_row(report, at, framework)?.1, *iteration)
            }
            Reading::Compiling { framework, of, at } => {
                let (cell, row) = quiet_row(report, at, framework)?;
                rows::compiling(cell, row, *of)
            }
            Reading::NewPrompt { framework, tokens, of, at } => {
                rows::new_prompt(quiet_row(report, at, framework)?.1, *tokens, *of)
            }
            Reading::Memory { framework, part, at } => {
                rows::memory(row(cell(report, at)?, framework)?, *part)
            }
            Reading::Perplexity { framework, at } => rows::perplexity(row(cell(report, at)?, framework)?),
        }
    }
}

impl Quotient {
    fn read(&self, report: &StudyReport) -> Outcome {
        let Over { framework, metric, at } = &self.over;
        let first = rows::figure(cell(report, &self.at)?, &self.framework, self.metric)?;
        let other = cell(report, at.as_ref().unwrap_or(&self.at))?;
        let framework = framework.as_ref().unwrap_or(&self.framework);
        let second = rows::figure(other, framework, metric.unwrap_or(self.metric))?;
        Ok(rows::quotient(first, second))
    }
}
