//! The outcome for a figure, or for a claim.

/// The verdict on a figure or a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Holds,
    DoesNot,
    /// With the reason.
    NotMeasurable(String),
    /// No stored result decides it.
    ToRun(Due),
}

/// Why a run must be made before it says anything about its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    Never,
    /// The stored results are of an earlier study. The reason names the change.
    Changed(String),
    /// The stored results are of this study, but of a checkout that no commit has. The text describes it.
    Unclean(String),
}

impl Due {
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Due::Never => "not run yet",
            Due::Changed(_) | Due::Unclean(_) => "to be run again",
        }
    }

    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Due::Never => None,
            Due::Changed(what) => Some(format!("its study has changed since: {what}")),
            Due::Unclean(checkout) => Some(format!("its figures are of {checkout}")),
        }
    }
}

impl Verdict {
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds here",
            Verdict::DoesNot => "does not",
            Verdict::NotMeasurable(_) => "not measurable here",
            Verdict::ToRun(due) => due.words(),
        }
    }
}

/// The verdict on a claim, from those on its figures: it holds if all do, and does not if one does not.
pub(crate) fn of_all(verdicts: &[Verdict]) -> Verdict {
    if verdicts.contains(&Verdict::DoesNot) {
        return Verdict::DoesNot;
    }
    verdicts.iter().find(|verdict| **verdict != Verdict::Holds).cloned().unwrap_or(Verdict::Holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_holds_if_all_its_figures_do() {
        let open = Verdict::NotMeasurable("why".into());
        assert_eq!(of_all(&[Verdict::Holds, Verdict::Holds]), Verdict::Holds);
        assert_eq!(of_all(&[Verdict::Holds, open.clone(), Verdict::DoesNot]), Verdict::DoesNot);
        assert_eq!(of_all(&[Verdict::Holds, open.clone()]), open);
    }
}
