//! Readers of a study's report: a small typed set. Each gives a figure or the reason why there is none.

use judge::Metric;
use judge::study::StudyReport;
use plan::{Axis, Settings};
use serde::Deserialize;

use crate::cells::{cell, place, quiet_row, row};
use crate::found::{Found, Outcome};
use crate::unit::Unit;
use crate::{pairs, rows};

/// One reader with its arguments. `at` names the cell by its place on the axes, if there are several.
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
    /// The result of a benchmark with too short a warm-up.
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
    /// The cost of compiling for a contender, compared with itself without its JIT.
    Compiling {
        framework: String,
        of: rows::Compiling,
        #[serde(default)]
        at: Settings,
    },
    /// The first time of a prompt of this many tokens, compared with later ones.
    NewPrompt {
        framework: String,
        tokens: usize,
        of: rows::NewPrompt,
        #[serde(default)]
        at: Settings,
    },
    /// A part of a contender's memory, in bytes; `over` divides it by the same part in another cell.
    Memory {
        framework: String,
        part: rows::Part,
        #[serde(default)]
        at: Settings,
        over: Option<Settings>,
    },
    /// Perplexity of the bundled text.
    Perplexity {
        framework: String,
        #[serde(default)]
        at: Settings,
    },
    /// The product of these factors: arithmetic on a source's statement about a model.
    Product { factors: Vec<f64> },
    /// A figure that no study here has; the claim's file says why.
    Absent,
}

/// The two things that a figure compares.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) a: String,
    pub(crate) b: String,
    /// Whether a larger figure is in favour of `a`.
    pub(crate) larger_favours_a: bool,
}

/// A figure of one contender and another figure. Fields that `over` leaves out are those of the first.
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
    /// Whether it is read from a run.
    pub(crate) fn needs_run(&self) -> bool {
        !matches!(self, Reading::Product { .. } | Reading::Absent)
    }

    /// The unit of the figure, if it has only one.
    pub(crate) fn unit(&self) -> Option<Unit> {
        match self {
            Reading::Advantage { .. } | Reading::Growth { .. } | Reading::Ratio(_) => Some(Unit::Times),
            Reading::Iteration { .. }
            | Reading::ShortWarmup { over: Some(_), .. }
            | Reading::Memory { over: Some(_), .. } => Some(Unit::Times),
            Reading::Less { .. } | Reading::Saving(_) => Some(Unit::Percent),
            _ => None,
        }
    }

    /// The two sides of a comparison, of which one can be better.
    pub(crate) fn sides(&self) -> Option<Sides> {
        let better = |a: &str, b: &str| Sides { a: a.to_owned(), b: b.to_owned(), larger_favours_a: true };
        match self {
            Reading::Advantage { a, b, .. } | Reading::Less { a, b, .. } => Some(better(a, b)),
            Reading::ShortWarmup { framework, over: Some(other), .. } => Some(better(framework, other)),
            Reading::Ratio(quotient) => quotient.sides(true),
            Reading::Saving(quotient) => quotient.sides(false),
            _ => None,
        }
    }

    /// Reads the figure. `report` is that of its run.
    pub fn read(&self, report: Option<&StudyReport>) -> Outcome {
        if let Reading::Product { factors } = self {
            return Ok(Found::alone(factors.iter().product()));
        }
        let report = report.ok_or("no study here has it")?;
        match self {
            Reading::Absent => Err("no study here has it".into()),
            Reading::Product { factors } => Ok(Found::alone(factors.iter().product())),
            Reading::Advantage { a, b, metric, at } => pairs::advantage(cell(report, at)?, a, b, *metric),
            Reading::Less { a, b, metric, at } => {
                Ok(pairs::advantage(cell(report, at)?, a, b, *metric)?.map(|times| 1.0 - 1.0 / times))
            }
            Reading::Growth { a, b, metric, from, at } => {
                let [small, large] = [from, at].map(|at| pairs::advantage(cell(report, at)?, a, b, *metric));
                Ok(pairs::quotient(large?, small?))
            }
            Reading::Figure { framework, metric, at } => {
                let found = rows::figure(cell(report, at)?, framework, *metric)?;
                // Shares are fractions here.
                let scale = if metric.unit() == "%" { 0.01 } else { 1.0 };
                Ok(found.map(|value| scale * value))
            }
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
            Reading::Memory { framework, part, at, over } => {
                let part = |at| rows::memory(row(cell(report, at)?, framework)?, *part);
                let other = over.as_ref().map(part).transpose()?;
                Ok(part(at)?.map(|bytes| other.map_or(bytes, |other| bytes / other.value)))
            }
            Reading::Perplexity { framework, at } => rows::perplexity(row(cell(report, at)?, framework)?),
        }
    }
}

impl Quotient {
    /// `is_ratio` is false for a saving.
    fn sides(&self, is_ratio: bool) -> Option<Sides> {
        let Over { framework, metric, at } = &self.over;
        let (a, b) = match (framework, metric, at) {
            (Some(other), None, _) => (self.framework.clone(), other.clone()),
            (None, None, Some(other)) => (place(&self.at), place(other)),
            // Two metrics of one contender: neither is better.
            _ => return None,
        };
        Some(Sides { a, b, larger_favours_a: self.metric.higher_is_better() == is_ratio })
    }

    fn read(&self, report: &StudyReport) -> Outcome {
        let Over { framework, metric, at } = &self.over;
        let first = rows::figure(cell(report, &self.at)?, &self.framework, self.metric)?;
        let other = cell(report, at.as_ref().unwrap_or(&self.at))?;
        let framework = framework.as_ref().unwrap_or(&self.framework);
        let second = rows::figure(other, framework, metric.unwrap_or(self.metric))?;
        Ok(rows::quotient(first, second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(text: &str) -> Option<(String, String, bool)> {
        let reading: Reading = toml::from_str(text).unwrap();
        reading.sides().map(|Sides { a, b, larger_favours_a }| (a, b, larger_favours_a))
    }

    fn expected(a: &str, b: &str, larger_favours_a: bool) -> Option<(String, String, bool)> {
        Some((a.to_owned(), b.to_owned(), larger_favours_a))
    }

    #[test]
    fn a_ratio_favours_its_first_side_by_the_direction_of_its_metric() {
        let ratio = |metric: &str, over: &str| {
            sides(&format!("kind = \"ratio\"\nframework = \"x\"\nmetric = \"{metric}\"\nover = {over}"))
        };
        assert_eq!(ratio("throughput", "{ framework = \"y\" }"), expected("x", "y", true));
        assert_eq!(ratio("peak_memory", "{ framework = \"y\" }"), expected("x", "y", false));
        assert_eq!(ratio("cold_start", "{ metric = \"first_token\" }"), None);
    }

    #[test]
    fn a_saving_in_another_cell_is_that_of_its_place() {
        let saving = "kind = \"saving\"\nframework = \"x\"\nmetric = \"peak_memory\"\n\
                      at = { precision = \"f16\" }\nover = { at = { precision = \"f32\" } }";
        assert_eq!(sides(saving), expected("f16", "f32", true));
    }
}
