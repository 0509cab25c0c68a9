//! Words as buckets of their hashes: one bit a bucket, whatever the text's length.

/// Buckets of a bag.
pub const BUCKETS: usize = 4096;
const BITS: usize = u64::BITS as usize;

/// A set of hashed words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bag([u64; BUCKETS / BITS]);

impl Default for Bag {
    fn default() -> Self {
        Self([0; BUCKETS / BITS])
    }
}

impl Bag {
    /// Takes a word; once or often is the same.
    pub fn add(&mut self, word: Hash) {
        let bucket = word.bucket();
        self.0[bucket / BITS] |= 1 << (bucket % BITS);
    }

    /// Takes all that the other holds.
    pub fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    /// How many buckets it holds.
    pub fn len(&self) -> usize {
        let count: u32 = self.0.iter().map(|bits| bits.count_ones()).sum();
        count as usize
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }

    /// Its buckets, in ascending order.
    pub fn buckets(&self) -> Vec<u16> {
        let mut found = Vec::with_capacity(self.len());
        for (place, bits) in self.0.iter().enumerate() {
            let mut left = *bits;
            while left != 0 {
                found.push((place * BITS) as u16 + left.trailing_zeros() as u16);
                left &= left - 1;
            }
        }
        found
    }

    /// The weights of its buckets, so that bags count alike whatever they hold: the sum over the root of how
    /// many there are. 0 for an empty one.
    pub fn weigh(&self, weights: &[f64; BUCKETS]) -> f64 {
        let (weights, _) = weights.as_chunks::<BITS>();
        let mut sum = 0.0;
        for (bits, weights) in self.0.iter().zip(weights) {
            let mut left = *bits;
            while left != 0 {
                sum += weights[left.trailing_zeros() as usize % BITS];
                left &= left - 1;
            }
        }
        sum / (self.len().max(1) as f64).sqrt()
    }
}

/// The CRC-32 (IEEE 802.3) of what was read so far: models that were saved know words by it.
#[derive(Clone, Copy, Debug)]
pub struct Hash(u32);

const TABLE: [u32; 256] = {
    let mut table = [0_u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (0xEDB8_8320 * (value & 1));
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

impl Hash {
    /// Of nothing, to which a word is added.
    pub const EMPTY: Self = Self(!0);

    /// Of this and then `bytes`.
    #[must_use]
    pub fn then(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |value, byte| {
            (value >> 8) ^ TABLE[usize::from(value as u8 ^ byte)]
        }))
    }

    fn bucket(self) -> usize {
        !self.0 as usize % BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_crc_of_the_whole() {
        assert_eq!(!Hash::EMPTY.then(b"1234").then(b"56789").0, 0xCBF4_3926);
    }

    #[test]
    fn a_bag_holds_each_word_once_and_in_order() {
        let mut bag = Bag::default();
        for word in ["plan", "plan", "edit"] {
            bag.add(Hash::EMPTY.then(word.as_bytes()));
        }
        let found = bag.buckets();
        assert_eq!(found.len(), 2);
        for number in 0..100_000 {
            bag.add(Hash::EMPTY.then(format!("word{number}").as_bytes()));
        }
        let all = bag.buckets();
        assert_eq!(all, (0..BUCKETS as u16).collect::<Vec<_>>());
    }
}
