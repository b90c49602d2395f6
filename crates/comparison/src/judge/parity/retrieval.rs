//! The search results of vectors or scores at a contender's own precision, compared with the reference's in f32.

use crate::facts::agreement::RetrievalScore;
use crate::facts::agreement::cosine;
use crate::plan::Retrieval;

/// Number of best documents of a query that are counted.
const BEST: usize = 10;

/// Compares the vectors of `asked.texts`, or their scores, with the reference's. `Err` says why that is
/// impossible.
pub fn score(
    asked: &Retrieval,
    ours: &[Vec<f32>],
    theirs: &[Vec<f32>],
) -> std::result::Result<RetrievalScore, String> {
    let is_like = |(ours, theirs): (&Vec<f32>, &Vec<f32>)| ours.len() == theirs.len();
    if [ours.len(), theirs.len()] != [asked.texts.len(); 2] || !ours.iter().zip(theirs).all(is_like) {
        return Err("it did not give a vector of the reference's size for each text".into());
    }
    if ours.iter().flatten().any(|number| !number.is_finite()) {
        return Err("its vectors are not finite".into());
    }
    let (ours, theirs) = (Found::new(asked, ours), Found::new(asked, theirs));
    let cosines: Vec<f64> =
        ours.vectors.iter().zip(&theirs.vectors).map(|(ours, theirs)| cosine(ours, theirs)).collect();
    let pairs = || ours.by_query.iter().zip(&theirs.by_query);
    let tau = pairs().filter_map(|(ours, theirs)| statistics::kendall_tau(ours, theirs));
    Ok(RetrievalScore {
        compared: cosines.len(),
        mean_cosine: mean(cosines.iter().copied()).ok_or("there are no texts")?,
        min_cosine: cosines.iter().copied().fold(f64::INFINITY, f64::min),
        top10: mean(pairs().map(|(ours, theirs)| shared(ours, theirs))),
        kendall_tau: mean(tau),
    })
}

/// The compared vectors, and for each query a number for every document: the higher, the better it fits.
struct Found {
    vectors: Vec<Vec<f32>>,
    by_query: Vec<Vec<f64>>,
}

impl Found {
    fn new(asked: &Retrieval, vectors: &[Vec<f32>]) -> Found {
        if asked.queries == 0 {
            return Found { vectors: vectors.to_vec(), by_query: Vec::new() };
        }
        if asked.pairs {
            let scores = vectors.chunks((vectors.len() / asked.queries).max(1));
            let vectors: Vec<Vec<f32>> = scores.map(<[Vec<f32>]>::concat).collect();
            let by_query = vectors.iter().map(|scores| scores.iter().copied().map(f64::from).collect());
            return Found { by_query: by_query.collect(), vectors };
        }
        let (queries, documents) = vectors.split_at(asked.queries);
        let fits = |query: &Vec<f32>| documents.iter().map(|document| cosine(query, document)).collect();
        Found { by_query: queries.iter().map(fits).collect(), vectors: vectors.to_vec() }
    }
}

/// Share of the reference's best documents that are among `ours`.
fn shared(ours: &[f64], theirs: &[f64]) -> f64 {
    let best = |fits: &[f64]| {
        let mut places: Vec<usize> = (0..fits.len()).collect();
        places.sort_by(|&a, &b| fits[b].total_cmp(&fits[a]));
        places.truncate(BEST);
        places
    };
    let (ours, theirs) = (best(ours), best(theirs));
    theirs.iter().filter(|place| ours.contains(place)).count() as f64 / theirs.len() as f64
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(queries: usize, pairs: bool, texts: usize) -> Retrieval {
        Retrieval { texts: vec![vec![1]; texts], types: Vec::new(), queries, pairs }
    }

    /// A query, and documents at angles of so many degrees from it.
    fn vectors(angles: &[f32]) -> Vec<Vec<f32>> {
        let at = |angle: f32| vec![angle.to_radians().cos(), angle.to_radians().sin()];
        [0.0].iter().chain(angles).map(|&angle| at(angle)).collect()
    }

    #[test]
    fn the_same_vectors_find_the_same() {
        let found = vectors(&[10.0, 40.0, 20.0]);
        let found = score(&asked(1, false, 4), &found, &found).unwrap();
        assert!((found.mean_cosine - 1.0).abs() < 1e-9 && (found.min_cosine - 1.0).abs() < 1e-9);
        assert_eq!((found.compared, found.top10, found.kendall_tau), (4, Some(1.0), Some(1.0)));
    }

    #[test]
    fn a_document_that_changes_its_place_leaves_the_best_and_the_order() {
        let angles: Vec<f32> = (1..=11).map(|place| place as f32 * 5.0).collect();
        // The last of eleven becomes the first.
        let changed: Vec<f32> = angles.iter().map(|&angle| if angle == 55.0 { 1.0 } else { angle }).collect();
        let found = score(&asked(1, false, 12), &vectors(&changed), &vectors(&angles)).unwrap();
        assert!((found.min_cosine - 54f64.to_radians().cos()).abs() < 1e-6, "{found:?}");
        assert_eq!(found.top10, Some(0.9));
        // Of 55 pairs, ten are in the opposite order.
        assert!((found.kendall_tau.unwrap() - 35.0 / 55.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn scores_of_a_query_are_a_vector() {
        let theirs = [[3.0], [1.0], [2.0], [5.0]].map(|score| score.to_vec());
        let ours = [[3.0], [1.0], [5.0], [2.0]].map(|score| score.to_vec());
        let found = score(&asked(2, true, 4), &ours, &theirs).unwrap();
        assert_eq!((found.compared, found.top10), (2, Some(1.0)));
        assert_eq!(found.kendall_tau, Some(0.0), "one query as before, one the other way round");
        assert!((found.min_cosine - 20.0 / 29.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn where_nothing_is_searched_vectors_alone_are_compared() {
        let found = score(&asked(0, false, 3), &vectors(&[10.0, 40.0]), &vectors(&[10.0, 30.0])).unwrap();
        assert_eq!((found.compared, found.top10, found.kendall_tau), (3, None, None));
    }

    #[test]
    fn vectors_that_are_missing_or_not_finite_are_said() {
        let theirs = vectors(&[10.0]);
        assert!(score(&asked(1, false, 2), &theirs[..1], &theirs).unwrap_err().contains("for each text"));
        let broken = vec![vec![f32::NAN, 0.0], theirs[1].clone()];
        assert!(score(&asked(1, false, 2), &broken, &theirs).unwrap_err().contains("finite"));
    }
}
