//! Divides a study into its cells.

use crate::engines::Engines;
use crate::study::{CellPlan, StudyKind, StudyPlan, StudyRequest, StudyView};
use crate::sweep::SweepKind;
use crate::{Result, ab, axes, sweep};

impl StudyRequest {
    /// Every cell, with the settings that the study fixes.
    pub fn plan(&self, engines: &dyn Engines) -> Result<StudyPlan> {
        let mut plan = match &self.kind {
            StudyKind::Sweep(kind) => self.sweep(*kind, engines)?,
            StudyKind::Ab(what) => ab::plan(what, &self.request, engines)?,
        };
        for cell in &mut plan.cells {
            cell.request.study.name.clone_from(&plan.name);
        }
        Ok(plan)
    }

    fn sweep(&self, kind: SweepKind, engines: &dyn Engines) -> Result<StudyPlan> {
        let mut request = sweep::completed(kind, &self.request, engines)?;
        if kind == SweepKind::Warmup && request.jit {
            let arms = sweep::beside_no_jit(&ab::engines_of(&request, engines)?);
            // The JIT is the subject of the study.
            if arms.iter().any(|arm| arm.jit.is_some()) {
                request.study.arms = arms;
                request.study.varied = vec!["R14".to_owned()];
            }
        }
        let mut cells = axes::cells(&request);
        if kind == SweepKind::Denoise {
            cells = sweep::beside_token_by_token(cells);
        }
        let cells = cells.into_iter();
        Ok(StudyPlan {
            name: format!("sweep {}", kind.name()),
            view: StudyView::Sweep(kind),
            cells: cells.map(|(settings, request)| CellPlan { settings, request }).collect(),
        })
    }
}
