//! Figures and their intervals as marks on one scale, a row each, for a terminal.

use ::history::Figure;

/// Characters of a strip.
const WIDTH: usize = 10;

/// A strip for each figure, from the least end of an interval to the largest: `├─●─┤`.
pub(super) fn strips(figures: &[&Figure]) -> Vec<String> {
    let ends = |figure: &Figure| figure.interval.unwrap_or((figure.typical, figure.typical));
    let low = figures.iter().map(|figure| ends(figure).0.min(figure.typical)).fold(f64::INFINITY, f64::min);
    let high =
        figures.iter().map(|figure| ends(figure).1.max(figure.typical)).fold(f64::NEG_INFINITY, f64::max);
    let place = |value: f64| match (value - low) / (high - low) {
        share if share.is_finite() => (share.clamp(0.0, 1.0) * (WIDTH - 1) as f64).round() as usize,
        // All are the same.
        _ => WIDTH / 2,
    };
    let strip = |figure: &&Figure| {
        let mut cells = [' '; WIDTH];
        let (from, to) = ends(figure);
        let (from, to) = (place(from), place(to));
        if from < to {
            cells[from..=to].fill('─');
            (cells[from], cells[to]) = ('├', '┤');
        }
        cells[place(figure.typical)] = '●';
        cells.iter().collect()
    };
    figures.iter().map(strip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(typical: f64, interval: Option<(f64, f64)>) -> Figure {
        Figure {
            unit: String::new(),
            higher_is_better: true,
            typical,
            interval,
            values: Vec::new(),
            other: Default::default(),
        }
    }

    #[test]
    fn a_strip_spans_all_intervals() {
        let figures = [figure(1.0, Some((0.0, 2.0))), figure(8.0, Some((7.0, 9.0))), figure(4.0, None)];
        let figures: Vec<&Figure> = figures.iter().collect();
        assert_eq!(strips(&figures), ["├●┤       ", "       ├●┤", "    ●     "]);
        let same = figure(2.0, None);
        assert_eq!(strips(&[&same, &same]), ["     ●    "; 2]);
        assert_eq!(strips(&[]), [""; 0]);
    }
}
