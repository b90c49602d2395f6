//! Programs on a framework whose tensors are arrays.

use std::cell::RefCell;

use bundle::{Dtype, Graph, GraphInput, GraphOutput};
use prost::Message;

use super::messages::{
    Attribute as Given, Graph as GraphMessage, Model, Node as NodeMessage, Opset, Tensor, Value,
};
use super::*;

#[derive(Default)]
struct Arrays {
    computed: RefCell<Vec<String>>,
}

impl Operations for Arrays {
    type Tensor = Rc<Array>;

    fn upload(&self, array: &Array) -> Result<Rc<Array>> {
        Ok(Rc::new(array.clone()))
    }

    fn download(&self, tensor: &Rc<Array>) -> Result<Array> {
        Ok(tensor.as_ref().clone())
    }

    fn shape(&self, tensor: &Rc<Array>) -> Vec<usize> {
        tensor.shape.clone()
    }

    fn dtype(&self, tensor: &Rc<Array>) -> Dtype {
        tensor.dtype
    }

    fn compute(&self, node: &Node, inputs: &Inputs<'_, Self>) -> Result<Vec<Rc<Array>>> {
        self.computed.borrow_mut().push(node.operator.clone());
        if node.operator == "Reshape" {
            let wanted = inputs.ints(1)?.unwrap_or_default();
            let data = inputs.tensor(0)?;
            let shape = node.reshape(&data.shape, &wanted)?;
            return Ok(vec![Rc::new(Array { shape, ..data.as_ref().clone() })]);
        }
        if node.operator == "Neg" {
            let numbers: Vec<f32> =
                inputs.tensor(0)?.floats().unwrap().iter().map(|number| -number).collect();
            return Ok(vec![Rc::new(Array::from_floats(&inputs.tensor(0)?.shape, &numbers))]);
        }
        let tensors = (0..inputs.len()).map(|place| inputs.optional(place)).collect::<Result<Vec<_>>>()?;
        let arrays: Vec<Option<&Array>> = tensors.into_iter().map(|tensor| tensor.map(Rc::as_ref)).collect();
        match host::evaluate(node, &arrays)? {
            Some(made) => Ok(made.into_iter().map(Rc::new).collect()),
            None => node.unsupported("there is no such function"),
        }
    }
}

fn node(operator: &str, inputs: &[&str], output: &str) -> NodeMessage {
    NodeMessage {
        op_type: operator.into(),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.into()],
        ..NodeMessage::default()
    }
}

fn with_ints(mut node: NodeMessage, name: &str, ints: &[i64]) -> NodeMessage {
    let ints = ints.to_vec();
    node.attribute.push(Given { name: name.into(), ints, r#type: 7, ..Given::default() });
    node
}

fn floats(name: &str, dims: &[i64], float_data: &[f32]) -> Tensor {
    let float_data = float_data.to_vec();
    Tensor { name: name.into(), dims: dims.to_vec(), data_type: 1, float_data, ..Tensor::default() }
}

fn ints(name: &str, numbers: &[i64]) -> Tensor {
    let int64_data = numbers.to_vec();
    let dims = vec![numbers.len() as i64];
    Tensor { name: name.into(), dims, data_type: 7, int64_data, ..Tensor::default() }
}

fn graph(node: Vec<NodeMessage>, initializer: Vec<Tensor>) -> GraphMessage {
    GraphMessage { node, initializer, ..GraphMessage::default() }
}

/// Reads a graph from `x` to `y`.
fn read(main: GraphMessage) -> Result<Program> {
    let opset_import = vec![Opset { domain: String::new(), version: 17 }];
    let model = Model { ir_version: 8, graph: Some(main), opset_import, functions: Vec::new() };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    Program::read(&path, &described())
}

fn described() -> Graph {
    Graph {
        opset: 17,
        inputs: vec![GraphInput { name: "x".into(), dtype: Dtype::Float32, shape: None }],
        outputs: vec![GraphOutput { name: "y".into(), dtype: Dtype::Float32 }],
        bytes: 0,
        stored: None,
        operators: BTreeMap::new(),
    }
}

fn tensor(shape: &[usize], numbers: &[f32]) -> Rc<Array> {
    Rc::new(Array::from_floats(shape, numbers))
}

#[test]
fn what_follows_from_shapes_is_computed_once_for_them_and_here() {
    let nodes = vec![
        node("Shape", &["x"], "sizes"),
        node("Gather", &["sizes", "first"], "rows"),
        node("Concat", &["rows", "rest"], "wanted"),
        node("Reshape", &["x", "wanted"], "flat"),
        node("Identity", &["flat"], "y"),
    ];
    let nodes = nodes.into_iter().map(|mut node| {
        if node.op_type == "Concat" {
            node.attribute.push(Given { name: "axis".into(), r#type: 2, ..Given::default() });
        }
        node
    });
    let program = read(graph(nodes.collect(), vec![ints("first", &[0]), ints("rest", &[-1])])).unwrap();
    assert_eq!(program.nodes(), 4, "Identity is dropped");
    let mut compiled = Compiled::new(program, Arrays::default());
    for shape in [[2, 3, 2], [2, 3, 2], [4, 1, 3]] {
        let x = tensor(&shape, &[1.0; 12]);
        let y = &compiled.run(std::slice::from_ref(&x)).unwrap()[0];
        assert_eq!(y.shape, [shape[0], 12 / shape[0]]);
        assert_eq!(compiled.reads_back(&[x]), None);
    }
    assert_eq!(*compiled.operations().computed.borrow(), ["Reshape"; 3]);
}

#[test]
fn large_weights_that_follow_from_others_are_computed_once_for_all_shapes() {
    let large = vec![1.0; host::LARGEST + 1];
    let nodes =
        vec![node("Neg", &["weight"], "turned"), node("Neg", &["turned"], "back"), node("Neg", &["x"], "z")];
    let mut main = graph(nodes, vec![floats("weight", &[large.len() as i64], &large)]);
    main.node.push(with_ints(node("Gather", &["back", "place"], "picked"), "unused", &[1]));
    main.node.push(node("Add", &["z", "picked"], "y"));
    main.initializer.push(ints("place", &[7]));
    let mut compiled = Compiled::new(read(main).unwrap(), Arrays::default());
    let error = compiled.run(&[tensor(&[1], &[3.0])]).unwrap_err();
    assert_eq!(error, ProgramError::Unsupported("Gather (node picked): there is no such function".into()));
    assert_eq!(compiled.operations().computed.borrow()[..2], ["Neg"; 2]);
    let _ = compiled.run(&[tensor(&[2], &[3.0; 2])]);
    let computed = compiled.operations().computed.borrow();
    assert_eq!(computed.iter().filter(|name| *name == "Neg").count(), 4, "two of weights, one in each run");
}

#[test]
fn a_branch_that_the_numbers_choose_is_chosen_in_every_run() {
    let branch = |name: &str, operator: &str| {
        let mut graph = graph(vec![node(operator, &["x", "one"], "inner")], Vec::new());
        graph.output.push(Value { name: "inner".into() });
        Given { name: name.into(), g: Some(Box::new(graph)), r#type: 5, ..Given::default() }
    };
    let mut choice = node("If", &["large"], "chosen");
    choice.attribute = vec![branch("then_branch", "Sub"), branch("else_branch", "Add")];
    let shaped = [node("Shape", &["chosen"], "sizes"), node("Reshape", &["chosen", "sizes"], "y")];
    let nodes = [vec![node("Greater", &["x", "one"], "large"), choice], shaped.to_vec()].concat();
    let program = read(graph(nodes, vec![floats("one", &[1], &[1.0])])).unwrap();
    let mut compiled = Compiled::new(program, Arrays::default());
    for (x, y) in [(5.0, 4.0), (0.5, 1.5), (7.0, 6.0)] {
        let x = tensor(&[1], &[x]);
        assert_eq!(*compiled.run(std::slice::from_ref(&x)).unwrap()[0], Array::from_floats(&[1], &[y]));
        assert_eq!(compiled.reads_back(&[x]), Some("If (node chosen)"));
    }
}

#[test]
fn a_normalisation_goes_into_the_convolution_before_it() {
    let mut norm = node("BatchNormalization", &["z", "scale", "shift", "mean", "variance"], "y");
    norm.attribute.push(Given { name: "epsilon".into(), r#type: 1, ..Given::default() });
    let nodes = vec![node("Conv", &["x", "weight"], "z"), norm];
    let constants = vec![
        floats("weight", &[2, 1, 1], &[1.0, 2.0]),
        floats("scale", &[2], &[3.0, 4.0]),
        floats("shift", &[2], &[0.5, 0.25]),
        floats("mean", &[2], &[1.0, 2.0]),
        floats("variance", &[2], &[4.0, 16.0]),
    ];
    let program = read(graph(nodes, constants)).unwrap();
    let [conv] = &program.bodies[0].steps[..] else { panic!("one node is left") };
    let constant = |place: usize| program.constants[&conv.inputs[place].unwrap()].clone();
    assert_eq!(constant(1), Array::from_floats(&[2, 1, 1], &[1.5, 2.0]));
    assert_eq!(constant(2), Array::from_floats(&[2], &[-1.0, -1.75]));
    assert_eq!(program.constants.len(), 2, "the others are dropped");
}

#[test]
fn what_is_added_to_each_channel_behind_a_convolution_is_its_bias() {
    let read = |added: &[i64]| {
        let nodes = vec![node("Conv", &["x", "w", "b"], "z"), node("Add", &["added", "z"], "y")];
        let constants = vec![
            floats("w", &[2, 1, 1, 1], &[2.0, 3.0]),
            floats("b", &[2], &[1.0, 2.0]),
            floats("added", added, &[10.0, 20.0]),
        ];
        read(graph(nodes, constants)).unwrap()
    };
    for added in [[1, 2, 1, 1].as_slice(), &[2, 1, 1]] {
        let program = read(added);
        assert_eq!(program.nodes(), 1);
        assert!(program.constants().any(|array| array.floats() == Some(vec![11.0, 22.0])));
    }
    // These are along the last axis.
    assert_eq!(read(&[2]).nodes(), 2);
    assert_eq!(read(&[1, 1, 1, 2]).nodes(), 2);
}

#[test]
fn operators_that_exporters_take_apart_are_one_again() {
    let mean = |input, output| with_ints(node("ReduceMean", &[input], output), "axes", &[-1]);
    let norm = vec![
        mean("x", "mean"),
        node("Sub", &["x", "mean"], "difference"),
        node("Pow", &["difference", "two"], "square"),
        mean("square", "variance"),
        node("Add", &["variance", "epsilon"], "sum"),
        node("Sqrt", &["sum"], "root"),
        node("Div", &["difference", "root"], "normal"),
        node("Mul", &["normal", "scale"], "scaled"),
        node("Add", &["scaled", "shift"], "y"),
    ];
    let rows = [floats("scale", &[2], &[1.0, 2.0]), floats("shift", &[2], &[0.0, 1.0])];
    let numbers = [floats("two", &[], &[2.0]), floats("epsilon", &[], &[1e-6])];
    let program = read(graph(norm.clone(), [rows, numbers].concat())).unwrap();
    let [step] = &program.bodies[0].steps[..] else { panic!("one node is left") };
    assert_eq!((step.node.operator.as_str(), step.inputs.len()), ("LayerNormalization", 3));
    assert_eq!((step.node.int("axis"), step.node.float("epsilon")), (Some(-1), Some(1e-6)));
    let others = [floats("scale", &[1, 2], &[1.0; 2]), floats("shift", &[2], &[0.0; 2])];
    let program =
        read(graph(norm, [others, [floats("two", &[], &[2.0]), floats("epsilon", &[], &[1.0])]].concat()));
    assert_eq!(program.unwrap().nodes(), 9, "a scale of two axes may scale something else");

    let erf = [node("Div", &["x", "root"], "a"), node("Erf", &["a"], "b"), node("Add", &["b", "one"], "c")];
    let orders = [
        [node("Mul", &["x", "c"], "d"), node("Mul", &["d", "half"], "y")],
        [node("Mul", &["half", "x"], "d"), node("Mul", &["d", "c"], "y")],
        [node("Mul", &["c", "half"], "d"), node("Mul", &["x", "d"], "y")],
    ];
    for order in orders {
        let numbers = [("root", std::f32::consts::SQRT_2), ("one", 1.0), ("half", 0.5)];
        let numbers = numbers.map(|(name, number)| floats(name, &[], &[number]));
        let program = read(graph([&erf[..], &order].concat(), numbers.to_vec())).unwrap();
        let [step] = &program.bodies[0].steps[..] else { panic!("one node is left") };
        assert_eq!((step.node.operator.as_str(), &step.inputs), ("Gelu", &vec![Some(program.inputs[0])]));
    }
}

#[test]
fn hard_swish_is_one_operator_again() {
    let nodes = |three: f32| {
        let nodes = vec![
            node("Add", &["x", "three"], "a"),
            node("Clip", &["a", "least", "most"], "b"),
            node("Mul", &["x", "b"], "c"),
            node("Div", &["c", "most"], "y"),
        ];
        let numbers = [("three", three), ("least", 0.0), ("most", 6.0)];
        read(graph(nodes, numbers.map(|(name, number)| floats(name, &[1], &[number])).to_vec())).unwrap()
    };
    assert_eq!(nodes(3.0).bodies[0].steps[0].node.operator, "HardSwish");
    assert_eq!((nodes(3.0).nodes(), nodes(2.0).nodes()), (1, 4));
}

#[test]
fn files_that_make_no_sense_are_errors() {
    let said = |main: GraphMessage| match read(main).map(|program| Compiled::new(program, Arrays::default()))
    {
        Err(error) => error.to_string(),
        Ok(mut compiled) => compiled.run(&[tensor(&[2], &[1.0; 2])]).unwrap_err().to_string(),
    };
    let before = said(graph(vec![node("Neg", &["z"], "y")], Vec::new()));
    assert!(before.contains("Neg (node y)") && before.contains("\"z\""), "{before}");
    let short = said(graph(vec![node("Add", &["x", "w"], "y")], vec![floats("w", &[3], &[1.0])]));
    assert!(short.contains("\"w\"") && short.contains("4 bytes"), "{short}");
    let output = said(graph(vec![node("Neg", &["x"], "z")], Vec::new()));
    assert!(output.contains("\"y\""), "{output}");
    let sizes = said(graph(vec![node("Reshape", &["x", "s"], "y")], vec![ints("s", &[i64::MAX, 3])]));
    assert!(sizes.contains("cannot be reshaped"), "{sizes}");
    let mut outside = floats("w", &[1], &[]);
    outside.data_location = 1;
    outside.external_data = vec![messages::Entry { key: "location".into(), value: "../w".into() }];
    assert!(said(graph(Vec::new(), vec![outside])).contains("outside the directory"));
    let mut turns = node("Loop", &["x"], "y");
    turns.attribute =
        vec![Given { name: "body".into(), g: Some(Box::default()), r#type: 5, ..Given::default() }];
    assert!(said(graph(vec![turns], Vec::new())).starts_with("Loop (node y)"));
}

#[test]
fn a_damaged_file_is_an_error_or_another_program() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.onnx");
    for file in conformance::graph_files() {
        let whole = std::fs::read(&file).unwrap();
        let described = crate::read::described(&whole).unwrap().graph;
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] = bytes[place].wrapping_add([1, 0x7f, 0x80][place % 3]);
            std::fs::write(&path, &bytes).unwrap();
            let Ok(program) = Program::read(&path, &described) else { continue };
            let inputs = described.inputs.iter().map(|_| tensor(&[2, 3], &[0.5; 6]));
            let inputs: Vec<Rc<Array>> = inputs.collect();
            let _ = Compiled::new(program, Arrays::default()).run(&inputs);
        }
    }
}

#[test]
fn small_arrays_are_computed_as_onnx_says() {
    let ints = |numbers: &[i64]| Array::from_ints(&[numbers.len()], numbers);
    let run = |node: &Node, inputs: &[&Array]| {
        let inputs: Vec<Option<&Array>> = inputs.iter().map(|&array| Some(array)).collect();
        host::evaluate(node, &inputs).unwrap().unwrap().remove(0)
    };
    let plain = |operator: &str| Node::new("n", operator, 17);
    let row = ints(&[0, 1, 2, 3, 4]);
    let back = [ints(&[-1]), ints(&[i64::MIN]), ints(&[0]), ints(&[-2])];
    assert_eq!(run(&plain("Slice"), &[&row, &back[0], &back[1], &back[2], &back[3]]), ints(&[4, 2, 0]));
    assert_eq!(run(&plain("Mod"), &[&ints(&[-7, 7]), &ints(&[3, -3])]), ints(&[2, -2]));
    assert_eq!(run(&plain("Tile"), &[&ints(&[1, 2]), &ints(&[2])]), ints(&[1, 2, 1, 2]));
    let column = Array::from_ints(&[2, 1], &[10, 20]);
    let sum = run(&plain("Add"), &[&column, &ints(&[1, 2])]);
    assert_eq!(sum, Array::from_ints(&[2, 2], &[11, 12, 21, 22]));
    assert_eq!(run(&plain("Transpose"), &[&sum]), Array::from_ints(&[2, 2], &[11, 21, 12, 22]));
    let steps = [5, 0, -2].map(|number| Array::from_ints(&[], &[number]));
    assert_eq!(run(&plain("Range"), &[&steps[0], &steps[1], &steps[2]]), ints(&[5, 3, 1]));
    assert_eq!(run(&plain("ReduceProd"), &[&sum, &ints(&[0])]), Array::from_ints(&[1, 2], &[231, 264]));
    let scattered = run(&plain("ScatterND"), &[&row, &Array::from_ints(&[1, 1], &[-1]), &ints(&[9])]);
    assert_eq!(scattered, ints(&[0, 1, 2, 3, 9]));
    let chosen = [Array::whole(Dtype::Bool, &[2], [1, 0].into_iter()), ints(&[1]), ints(&[5, 6])];
    assert_eq!(run(&plain("Where"), &[&chosen[0], &chosen[1], &chosen[2]]), ints(&[1, 6]));
    assert!(host::evaluate(&plain("Div"), &[Some(&row), Some(&ints(&[0]))]).is_err());
}
