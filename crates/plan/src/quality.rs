//! The bundled text or texts by which a study judges an engine's output, or the cost of a precision.

/// Data that is computed once, apart from the timed requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QualityData {
    /// Token ids of a text, each of which is predicted from those before it.
    Text(Vec<u32>),
    /// The input of an encoder.
    Retrieval(Retrieval),
}

/// Texts that queries are to find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retrieval {
    /// Token ids. For vectors: the queries, then the documents. For scores of texts: each query with every
    /// document, query by query.
    pub texts: Vec<Vec<u32>>,
    /// The type of each token; all 0 if empty.
    pub types: Vec<Vec<u32>>,
    /// Number of queries; 0 if nothing is searched, because a text has several scores.
    pub queries: usize,
    /// Whether each text is a query with a document.
    pub pairs: bool,
}
