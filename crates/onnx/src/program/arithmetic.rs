//! The arithmetic of small arrays.

use bundle::Dtype;

use super::array::View;
use super::host::{Given, LARGEST};
use super::{Array, Result};

/// The numbers of an array in the type in which they are computed here.
enum Numbers {
    Whole(Vec<i64>),
    Floats(Vec<f32>),
}

fn numbers(array: &Array) -> Option<Numbers> {
    match array.dtype {
        Dtype::Int64 | Dtype::Int32 | Dtype::Bool => array.ints().map(Numbers::Whole),
        Dtype::Float32 => array.floats().map(Numbers::Floats),
        _ => None,
    }
}

impl Given<'_> {
    pub(super) fn range(&self) -> Result<Option<Array>> {
        let dtype = self.array(0)?.dtype;
        let bounds = [0, 1, 2].map(|place| self.array(place).ok().and_then(numbers));
        match bounds {
            [Some(Numbers::Whole(start)), Some(Numbers::Whole(limit)), Some(Numbers::Whole(step))] => {
                let (&[start], &[limit], &[step]) = (&start[..], &limit[..], &step[..]) else {
                    return self.wrong();
                };
                if step == 0 {
                    return self.node.failed("it goes on by 0");
                }
                let distance = i128::from(limit) - i128::from(start);
                let step = i128::from(step);
                let count =
                    distance / step + i128::from(distance % step != 0 && (distance > 0) == (step > 0));
                let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
                if count > LARGEST {
                    return Ok(None);
                }
                let numbers = (0..count as i64).map(|turn| start + turn * step as i64);
                Ok(Some(Array::whole(dtype, &[count], numbers)))
            }
            [Some(Numbers::Floats(start)), Some(Numbers::Floats(limit)), Some(Numbers::Floats(step))] => {
                let (&[start], &[limit], &[step]) = (&start[..], &limit[..], &step[..]) else {
                    return self.wrong();
                };
                // A count that is no number is 0.
                let count = (((limit - start) / step).ceil().max(0.0)) as usize;
                if count > LARGEST {
                    return Ok(None);
                }
                let numbers: Vec<f32> = (0..count).map(|turn| start + turn as f32 * step).collect();
                Ok(Some(Array::from_floats(&[count], &numbers)))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn cast(&self) -> Result<Option<Array>> {
        let data = self.array(0)?;
        let to = self.node.int("to").and_then(|to| i32::try_from(to).ok()).and_then(crate::read::dtype);
        let Some(numbers) = numbers(data) else { return Ok(None) };
        Ok(match (to, numbers) {
            (Some(Dtype::Float32), Numbers::Whole(from)) => {
                let numbers: Vec<f32> = from.iter().map(|&number| number as f32).collect();
                Some(Array::from_floats(&data.shape, &numbers))
            }
            (Some(Dtype::Float32), Numbers::Floats(_)) => Some(data.clone()),
            (Some(to @ (Dtype::Int64 | Dtype::Int32 | Dtype::Bool)), Numbers::Whole(from)) => {
                Some(Array::whole(to, &data.shape, from.into_iter()))
            }
            (Some(Dtype::Bool), Numbers::Floats(from)) => {
                let numbers = from.into_iter().map(|number| i64::from(number != 0.0));
                Some(Array::whole(Dtype::Bool, &data.shape, numbers))
            }
            (Some(to @ (Dtype::Int64 | Dtype::Int32)), Numbers::Floats(from)) => {
                Some(Array::whole(to, &data.shape, from.into_iter().map(|number| number as i64)))
            }
            _ => None,
        })
    }

    pub(super) fn reduce(&self) -> Result<Option<Array>> {
        let data = self.array(0)?;
        let axes = self.listed("axes", 1)?;
        let Some(Numbers::Whole(numbers)) = numbers(data) else { return Ok(None) };
        if axes.is_none() && self.node.int("noop_with_empty_axes") == Some(1) {
            return Ok(Some(data.clone()));
        }
        let mut is_reduced = vec![axes.is_none(); data.shape.len()];
        for axis in axes.unwrap_or_default() {
            is_reduced[self.axis(axis, data.shape.len())?] = true;
        }
        let kept: Vec<usize> = data
            .shape
            .iter()
            .zip(&is_reduced)
            .map(|(&size, &reduced)| if reduced { 1 } else { size })
            .collect();
        if data.elements() == 0 {
            return Ok(None);
        }
        let Some(places) = View::whole(&kept).broadcast(&data.shape).map(|view| view.places()) else {
            return self.wrong();
        };
        let mut results: Vec<Option<i64>> = vec![None; kept.iter().product()];
        for (number, place) in numbers.into_iter().zip(places) {
            let so_far = &mut results[place];
            *so_far = Some(match (*so_far, self.node.operator.as_str()) {
                (None, _) => number,
                (Some(product), "ReduceProd") => product.wrapping_mul(number),
                (Some(sum), "ReduceSum") => sum.wrapping_add(number),
                (Some(largest), "ReduceMax") => largest.max(number),
                (Some(smallest), _) => smallest.min(number),
            });
        }
        let mut array = Array::whole(data.dtype, &kept, results.into_iter().map(Option::unwrap_or_default));
        if self.node.int("keepdims") == Some(0) {
            array.shape =
                kept.iter().zip(is_reduced).filter(|(_, reduced)| !reduced).map(|(&size, _)| size).collect();
        }
        Ok(Some(array))
    }

    pub(super) fn unary(&self) -> Result<Option<Array>> {
        let data = self.array(0)?;
        Ok(match (numbers(data), self.node.operator.as_str()) {
            (Some(Numbers::Whole(numbers)), operator @ ("Not" | "Neg" | "Abs")) => {
                let result = |number: i64| match operator {
                    "Not" => i64::from(number == 0),
                    "Neg" => number.wrapping_neg(),
                    _ => number.wrapping_abs(),
                };
                Some(Array::whole(data.dtype, &data.shape, numbers.into_iter().map(result)))
            }
            (Some(Numbers::Floats(mut numbers)), operator @ ("Neg" | "Abs" | "Floor" | "Ceil" | "Sqrt")) => {
                for number in &mut numbers {
                    *number = match operator {
                        "Neg" => -*number,
                        "Abs" => number.abs(),
                        "Floor" => number.floor(),
                        "Ceil" => number.ceil(),
                        _ => number.sqrt(),
                    };
                }
                Some(Array::from_floats(&data.shape, &numbers))
            }
            _ => None,
        })
    }

    pub(super) fn elementwise(&self) -> Result<Option<Array>> {
        let dtype = self.array(0)?.dtype;
        let Some((shape, places)) = self.broadcast()? else { return Ok(None) };
        let operator = self.node.operator.as_str();
        let compares = matches!(operator, "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual");
        let (mut whole, mut floats) = (Vec::new(), Vec::new());
        for place in 0..self.inputs.len() {
            match numbers(self.array(place)?) {
                Some(Numbers::Whole(numbers)) => whole.push(numbers),
                Some(Numbers::Floats(numbers)) => floats.push(numbers),
                None => return Ok(None),
            }
        }
        let count = places[0].len();
        let picked = |place: usize, turn: usize| places[place][turn];
        if floats.is_empty() {
            let mut results: Vec<i64> = (0..count).map(|turn| whole[0][picked(0, turn)]).collect();
            for place in 1..whole.len() {
                for (turn, result) in results.iter_mut().enumerate() {
                    match self.combine_whole(*result, whole[place][picked(place, turn)]) {
                        Some(number) => *result = number,
                        None => return self.node.failed("it divides by 0, or its result is too large"),
                    }
                }
            }
            let dtype = if compares { Dtype::Bool } else { dtype };
            return Ok(Some(Array::whole(dtype, &shape, results.into_iter())));
        }
        if !whole.is_empty() {
            return Ok(None);
        }
        let mut results: Vec<f32> = (0..count).map(|turn| floats[0][picked(0, turn)]).collect();
        for place in 1..floats.len() {
            for (turn, result) in results.iter_mut().enumerate() {
                let Some(number) = self.combine_floats(*result, floats[place][picked(place, turn)]) else {
                    return Ok(None);
                };
                *result = number;
            }
        }
        Ok(Some(match compares {
            true => {
                Array::whole(Dtype::Bool, &shape, results.into_iter().map(|number| i64::from(number != 0.0)))
            }
            false => Array::from_floats(&shape, &results),
        }))
    }

    fn combine_whole(&self, a: i64, b: i64) -> Option<i64> {
        Some(match self.node.operator.as_str() {
            "Add" => a.wrapping_add(b),
            "Sub" => a.wrapping_sub(b),
            "Mul" => a.wrapping_mul(b),
            "Div" => a.checked_div(b)?,
            "Mod" => {
                let rest = a.checked_rem(b)?;
                let has_other_sign = rest != 0 && (rest < 0) != (b < 0);
                if self.node.int("fmod") != Some(1) && has_other_sign { rest + b } else { rest }
            }
            "Pow" => a.checked_pow(u32::try_from(b).ok()?)?,
            "Min" => a.min(b),
            "Max" => a.max(b),
            "And" => i64::from(a != 0 && b != 0),
            "Or" => i64::from(a != 0 || b != 0),
            "Xor" => i64::from((a != 0) != (b != 0)),
            "Equal" => i64::from(a == b),
            "Less" => i64::from(a < b),
            "Greater" => i64::from(a > b),
            "LessOrEqual" => i64::from(a <= b),
            _ => i64::from(a >= b),
        })
    }

    fn combine_floats(&self, a: f32, b: f32) -> Option<f32> {
        let truth = |is_true: bool| if is_true { 1.0 } else { 0.0 };
        Some(match self.node.operator.as_str() {
            "Add" => a + b,
            "Sub" => a - b,
            "Mul" => a * b,
            "Div" => a / b,
            "Pow" => a.powf(b),
            "Min" => a.min(b),
            "Max" => a.max(b),
            "Equal" => truth(a == b),
            "Less" => truth(a < b),
            "Greater" => truth(a > b),
            "LessOrEqual" => truth(a <= b),
            "GreaterOrEqual" => truth(a >= b),
            _ => return None,
        })
    }
}
