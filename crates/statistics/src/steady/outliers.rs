//! Outliers of a series, found by a moving window.

/// The window of the paper, in points, and the narrowest.
const WIDEST: usize = 200;
const NARROWEST: usize = 12;
/// Least half-width of the band, relative to the median: equal readings of a clock do not make the next one
/// an outlier.
const LEAST_BAND: f64 = 0.01;

/// Indices of the points that are no outliers. An outlier is outside median ± 3·(P₉₀ − P₁₀) of the window
/// around it (Barrett et al. 2017, after Tukey 1977). The paper's window is 200 points wide; shorter series
/// get a quarter of their length.
///
/// The paper keeps every point of the first half window, where warming up looks like an outlier. Here a point
/// is kept there if all points before it are outliers too: that is warming up; an isolated one is not.
pub(super) fn without(series: &[f64]) -> Vec<usize> {
    let half = (series.len() / 4).clamp(NARROWEST, WIDEST) / 2;
    let mut kept = Vec::with_capacity(series.len());
    let mut window = Window::new(&series[..2 * half]);
    let mut warming_up = true;
    for (index, &value) in series.iter().enumerate() {
        if index > half && index + half <= series.len() {
            window.replace(series[index - half - 1], series[index + half - 1]);
        }
        let absurd = window.finds_absurd(value);
        warming_up &= absurd && index < half;
        if !absurd || warming_up || index == 0 {
            kept.push(index);
        }
    }
    kept
}

/// Points in ascending order.
struct Window(Vec<f64>);

impl Window {
    fn new(points: &[f64]) -> Self {
        let mut points = points.to_vec();
        points.sort_by(f64::total_cmp);
        Self(points)
    }

    fn replace(&mut self, old: f64, new: f64) {
        self.0.remove(self.0.partition_point(|&x| x < old));
        self.0.insert(self.0.partition_point(|&x| x < new), new);
    }

    fn finds_absurd(&self, value: f64) -> bool {
        let quantile = |share: f64| self.0[(share * (self.0.len() - 1) as f64).round() as usize];
        let (low, median, high) = (quantile(0.1), quantile(0.5), quantile(0.9));
        (value - median).abs() > (3.0 * (high - low)).max(LEAST_BAND * median)
    }
}
