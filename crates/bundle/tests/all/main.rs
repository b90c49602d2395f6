mod architectures;
mod weights;
