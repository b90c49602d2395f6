# `fused.rs` in TorchScript: the same operations, compiled for each layer with its weights and sizes as constants,
# so that a branch on one of them is none.


def norm(self, both: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    stream = both.narrow(1, 0, self.hidden)
    if self.rms_norm == 1:
        torch.neg(stream, out=both.narrow(1, self.hidden, self.hidden))
        normed = torch.layer_norm(both, [2 * self.hidden], weight, None, self.epsilon, False)
        return normed.narrow(1, 0, self.hidden)
    return torch.layer_norm(stream, [self.hidden], weight, bias, self.epsilon, False)


def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Optional[Tensor]) -> Tensor:
    batch, positions = queries.size(0), queries.size(1)
    if self.grouped == 1 and positions == 1:
        groups = queries.view([batch, self.kv, self.query // self.kv, self.dim])
        return torch.scaled_dot_product_attention(groups, keys, values, mask)
    causal = self.causal == 1 and positions > 1 and mask is None
    shared = self.query != self.kv
    queries = queries.transpose(1, 2)
    attended = torch.scaled_dot_product_attention(queries, keys, values, mask, 0.0, causal, scale=None, enable_gqa=shared)
    return attended.transpose(1, 2)


def activate(self, x: Tensor) -> Tensor:
    if self.activation == "silu":
        return torch.silu(x)
    if self.activation == "relu":
        return torch.relu(x)
    return torch.gelu(x, approximate=self.activation)


def mlp(self, x: Tensor) -> Tensor:
    projected = self.gate_up.multiply(x)
    if self.gated == 1:
        width = projected.size(1) // 2
        gate = self.activate(projected.narrow(1, 0, width))
        return self.down.multiply(gate.mul_(projected.narrow(1, width, width)))
    return self.down.multiply(self.activate(projected))


# Adds what the layer computes to the residual stream, the left half of `both`, and its keys and values to `slot`.
def forward(
    self,
    both: Tensor,
    cos: Optional[Tensor],
    sin: Optional[Tensor],
    slot: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Optional[Tensor],
    heard_keys: Optional[Tensor],
    heard_values: Optional[Tensor],
):
    stream = both.narrow(1, 0, self.hidden)
    batch, positions = slot.size(0), slot.size(2)
    rows = batch * positions

    x = self.norm(both, self.attention_norm, self.attention_norm_bias)
    qkv = self.qkv.multiply(x).view([batch, positions, self.query + 2 * self.kv, self.dim])
    qk = qkv.narrow(2, 0, self.query + self.kv)
    qk_norm = self.qk_norm
    if qk_norm is not None:
        unit = torch.layer_norm(torch.cat([qk, qk.neg()], -1), [2 * self.dim], None, None, self.epsilon, False)
        torch.mul(unit.narrow(-1, 0, self.dim), qk_norm, out=qk)
    if cos is not None and sin is not None:
        swapped = qk.roll([self.dim // 2], [-1])
        qk.mul_(cos).addcmul_(swapped, sin)
    slot.copy_(qkv.narrow(2, self.query, 2 * self.kv).transpose(1, 2))
    attended = self.attend(qkv.narrow(2, 0, self.query), keys, values, mask)
    stream.add_(self.output.multiply(attended.reshape([rows, self.query * self.dim])))

    cross_q, cross_output = self.cross_q, self.cross_output
    if cross_q is not None and cross_output is not None and heard_keys is not None and heard_values is not None:
        x = self.norm(both, self.cross_norm, self.cross_norm_bias)
        queries = cross_q.multiply(x).view([1, rows, self.query, self.dim]).transpose(1, 2)
        shares = torch.matmul(queries * self.scale, heard_keys.transpose(2, 3)).softmax(-1)
        attended = torch.matmul(shares, heard_values).transpose(1, 2)
        stream.add_(cross_output.multiply(attended.reshape([rows, self.query * self.dim])))

    x = self.norm(both, self.mlp_norm, self.mlp_norm_bias)
    stream.add_(self.mlp(x))
