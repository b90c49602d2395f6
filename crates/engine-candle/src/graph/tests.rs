//! The engine's convolutions and pools against candle's own, where they are cut into pieces.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops;

use super::convolution::{Window, convolved, depthwise, padded};
use super::pieces::{each, part};
use super::pooling::pooled;
use super::products::{product, products};

/// Small whole numbers, whose sums are exact in any order.
fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let all = (0..count).map(|place| (place * 7919 % 11) as f32 - 5.0);
    Tensor::from_iter(all, &Device::Cpu).unwrap().reshape(shape).unwrap()
}

fn same(found: &Tensor, expected: &Tensor) {
    let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(found.elem_count(), expected.elem_count());
    assert!(flat(found) == flat(expected), "{:?} and {:?}", found.shape(), expected.shape());
}

/// A square window, and what candle's functions take for it.
fn window(size: [usize; 2], [kernel, stride, dilation, pad]: [usize; 4]) -> Window {
    let out = size.map(|size| (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1);
    let [kernel, strides, dilations] = [kernel, stride, dilation].map(|size| [size; 2]);
    Window { kernel, strides, dilations, pads: [[pad; 2]; 2], rest: [0; 2], out }
}

const WINDOWS: [[usize; 4]; 7] =
    [[1, 1, 1, 0], [3, 1, 1, 1], [3, 2, 1, 1], [5, 2, 1, 2], [3, 1, 2, 2], [3, 2, 3, 0], [2, 3, 1, 1]];

#[test]
fn a_convolution_in_pieces_is_candle_s() {
    for (channels, outputs, size) in
        [(1, 4, [40, 300]), (20, 9, [50, 41]), (600, 7, [20, 18]), (3, 70, [12, 12])]
    {
        let x = numbers(&[channels, size[0], size[1]]);
        let bias = numbers(&[outputs, 1]);
        for given in WINDOWS {
            let [kernel, stride, dilation, pad] = given;
            let weight = numbers(&[outputs, channels, kernel, kernel]);
            let expected = x.unsqueeze(0).unwrap().conv2d(&weight, pad, stride, dilation, 1).unwrap();
            let expected = expected.broadcast_add(&bias.unsqueeze(2).unwrap()).unwrap();
            let weight = weight.reshape((outputs, channels * kernel * kernel)).unwrap();
            same(&convolved(&x, &weight, Some(&bias), &window(size, given)).unwrap(), &expected);
        }
    }
}

#[test]
fn a_depthwise_convolution_is_candle_s_also_of_images_that_are_too_large_for_one_piece() {
    for (channels, each, size) in
        [(40, 1, [30, 29]), (5, 3, [17, 64]), (2, 1, [300, 330]), (1, 2, [2, 40_000])]
    {
        let x = numbers(&[channels, size[0], size[1]]);
        let bias = numbers(&[channels * each, 1]);
        for given in WINDOWS {
            let [kernel, stride, dilation, pad] = given;
            if dilation * (kernel - 1) >= size[0] + 2 * pad {
                continue;
            }
            let weight = numbers(&[channels * each, 1, kernel, kernel]);
            let expected = x.unsqueeze(0).unwrap().conv2d(&weight, pad, stride, dilation, channels).unwrap();
            let expected = expected.broadcast_add(&bias.unsqueeze(2).unwrap()).unwrap();
            let weight = weight.reshape((channels * each, kernel * kernel)).unwrap();
            same(&depthwise(&x, &weight, Some(&bias), &window(size, given)).unwrap(), &expected);
        }
    }
}

#[test]
fn a_pool_of_shifted_views_is_candle_s() {
    for size in [[40, 30], [300, 320]] {
        let x = numbers(&[1, 6, size[0], size[1]]);
        for given in [[2, 2, 1, 0], [3, 1, 1, 1], [3, 2, 1, 1], [5, 1, 1, 2]] {
            let [kernel, stride, _, pad] = given;
            let found = pooled(&x, &window(size, given), f64::NEG_INFINITY, |a, b| a.maximum(b)).unwrap();
            let around = padded(&x, [[pad; 2]; 2], f64::NEG_INFINITY).unwrap();
            same(&found, &around.max_pool2d_with_stride(kernel, stride).unwrap());
        }
    }
}

#[test]
fn products_and_functions_in_pieces_are_candle_s() {
    let bias = numbers(&[300, 1]);
    for [m, k, n] in [[300, 64, 200], [300, 40, 3000], [300, 300, 1]] {
        let (a, b) = (numbers(&[m, k]), numbers(&[n, k]).t().unwrap());
        same(&product(&a, &b, Some(&bias)).unwrap(), &a.matmul(&b).unwrap().broadcast_add(&bias).unwrap());
    }
    // Of views, repeated ones among them, as heads of attention are.
    let a = numbers(&[2, 40, 6, 32]).transpose(1, 2).unwrap();
    let b = numbers(&[1, 1, 50, 32]).t().unwrap();
    same(
        &products(&a, &b).unwrap(),
        &a.contiguous().unwrap().broadcast_matmul(&b.contiguous().unwrap()).unwrap(),
    );
    let x = numbers(&[3, 30_001]);
    same(&each(&x, ops::sigmoid).unwrap(), &ops::sigmoid(&x).unwrap());
    let failed: Result<Tensor> = each(&x, |x| x.to_dtype(DType::F64)?.matmul(x));
    assert!(failed.is_err() && part(0, 1) == 1);
}
