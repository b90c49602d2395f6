//! The bundled text or texts by which a study judges what an engine computes, or what a precision costs.

/// What is computed once, beside the timed requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QualityData {
    /// Token ids of a text, each of which is predicted from those before it.
    Text(Vec<u32>),
    /// What an encoder is given.
    Retrieval(Retrieval),
}

/// Texts that queries are to find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retrieval {
    /// Token ids. For vectors: the queries, then the documents. For scores of texts: each query with every document, query
    /// by query.
    pub texts: Vec<Vec<u32>>,
    /// The type of each token; all 0 where it is empty.
    pub types: Vec<Vec<u32>>,
    /// Number of queries; 0 where nothing is searched, because a text has several scores.
    pub queries: usize,
    /// Whether each text is a query with a document.
    pub pairs: bool,
}
