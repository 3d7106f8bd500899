// What a step of the embedded engine computes, in one call instead of a hundred and fifty.
//
// At small sizes calls are the cost, and each of torch's gives the interpreter away and waits for it again. These operators
// call the same functions of torch, in the same order and with the same arguments, as `llama_forward.py`, `attention.py` and
// `sampler.py` do, which define them: the numbers are the same to the bit. Letters in names are axes, as there.

#include <torch/library.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;

constexpr int64_t kRoundKeys = 16;   // as in attention.py
constexpr int64_t kRowsPerRun = 8;   // as in attention.py
constexpr int64_t kShared = 6;       // weights before those of layers
constexpr int64_t kOfLayer = 11;     // weights of a layer
constexpr int64_t kNumbersOfLayer = 4;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

std::optional<Tensor> given(const Tensor& tensor) {
  return tensor.numel() == 0 ? std::nullopt : std::optional<Tensor>(tensor);
}

Tensor integers(const std::vector<int64_t>& values) {
  Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

struct Prefill {
  int64_t slot, first, start, end;
  std::optional<Tensor> mask_PC;  // none: nothing before it, plainly causal
};

struct Run {
  int64_t first, last, slot;
};

// `Plan` of attention.py.
struct Plan {
  Tensor places_N, positions_N, last_R, mask_B11C;
  std::optional<Tensor> gather_B;
  int64_t decoding = 0, keys = 0;
  std::vector<Run> runs;
  std::vector<Prefill> prefills;

  Plan(at::IntArrayRef rows, int64_t slot_tokens) {
    std::vector<int64_t> places, positions, lasts, slots;
    int64_t longest = 0;
    for (size_t at = 0; at < rows.size(); at += 3) {
      const int64_t slot = rows[at], start = rows[at + 1], end = rows[at + 2];
      const int64_t first = static_cast<int64_t>(places.size());
      for (int64_t token = start; token < end; ++token) {
        places.push_back(slot * slot_tokens + token);
        positions.push_back(token);
      }
      lasts.push_back(static_cast<int64_t>(places.size()) - 1);
      if (end - start == 1) {
        TORCH_CHECK(prefills.empty(), "decode rows come first");
        slots.push_back(slot);
        longest = std::max(longest, end);
        ++decoding;
      } else {
        prefills.push_back({slot, first, start, end, causal(start, end)});
      }
    }
    places_N = integers(places);
    positions_N = integers(positions);
    last_R = integers(lasts);
    if (decoding > 0) plan_decoding(rows, slots, longest, slot_tokens);
  }

 private:
  static std::optional<Tensor> causal(int64_t start, int64_t end) {
    if (start == 0) return std::nullopt;
    Tensor mask_PC = at::empty({end - start, end}, at::kFloat);
    float* at_mask = mask_PC.mutable_data_ptr<float>();
    for (int64_t token = start; token < end; ++token)
      for (int64_t key = 0; key < end; ++key) *at_mask++ = key > token ? kHidden : 0.0f;
    return mask_PC;
  }

  void plan_decoding(at::IntArrayRef rows, const std::vector<int64_t>& slots, int64_t longest, int64_t slot_tokens) {
    keys = std::min((longest + kRoundKeys - 1) / kRoundKeys * kRoundKeys, slot_tokens);
    mask_B11C = at::empty({decoding, 1, 1, keys}, at::kFloat);
    float* at_mask = mask_B11C.mutable_data_ptr<float>();
    for (int64_t row = 0; row < decoding; ++row)
      for (int64_t key = 0; key < keys; ++key) *at_mask++ = key >= rows[3 * row + 2] ? kHidden : 0.0f;
    for (int64_t row = 0; row < decoding; ++row) {
      if (row == 0 || slots[row] != slots[row - 1] + 1) runs.push_back({row, row + 1, slots[row]});
      runs.back().last = row + 1;
    }
    if (static_cast<int64_t>(runs.size()) > std::max<int64_t>(1, decoding / kRowsPerRun)) gather_B = integers(slots);
  }
};

// `_decode` of attention.py.
Tensor decode(const Tensor& query_BHD, const Tensor& all_keys, const Tensor& all_values, const Plan& plan, double scaling) {
  const int64_t rows = query_BHD.size(0), heads = query_BHD.size(1), size = query_BHD.size(2);
  const Tensor query_BKGD = query_BHD.reshape({rows, all_keys.size(2), -1, size});
  const Tensor key = all_keys.narrow(1, 0, plan.keys), value = all_values.narrow(1, 0, plan.keys);
  std::vector<Tensor> mixed;
  const auto attend = [&](int64_t first, int64_t last, const Tensor& key_BCKD, const Tensor& value_BCKD) {
    mixed.push_back(at::scaled_dot_product_attention(
        query_BKGD.narrow(0, first, last - first), key_BCKD.transpose(1, 2), value_BCKD.transpose(1, 2),
        plan.mask_B11C.narrow(0, first, last - first), 0.0, false, scaling, false));
  };
  if (plan.gather_B) {
    attend(0, rows, key.index_select(0, *plan.gather_B), value.index_select(0, *plan.gather_B));
  } else {
    for (const Run& run : plan.runs)
      attend(run.first, run.last, key.narrow(0, run.slot, run.last - run.first),
             value.narrow(0, run.slot, run.last - run.first));
  }
  return (mixed.size() == 1 ? mixed[0] : at::cat(mixed)).reshape({rows, heads, size});
}

// `attend` of attention.py.
Tensor attend(const Tensor& query_NHD, const Tensor& key, const Tensor& value, const Plan& plan, double scaling) {
  std::vector<Tensor> parts;
  if (plan.decoding > 0) parts.push_back(decode(query_NHD.narrow(0, 0, plan.decoding), key, value, plan, scaling));
  for (const Prefill& row : plan.prefills) {
    const Tensor query_HPD = query_NHD.narrow(0, row.first, row.end - row.start).transpose(0, 1);
    const Tensor mixed_1HPD = at::scaled_dot_product_attention(
        query_HPD.unsqueeze(0), key.select(0, row.slot).unsqueeze(0).narrow(1, 0, row.end).transpose(1, 2),
        value.select(0, row.slot).unsqueeze(0).narrow(1, 0, row.end).transpose(1, 2), row.mask_PC, 0.0,
        !row.mask_PC.has_value(), scaling, query_NHD.size(1) != key.size(2));
    parts.push_back(mixed_1HPD[0].transpose(0, 1));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

// `Plain.add` of products.py.
Tensor add(const Tensor& residual_NO, const Tensor& x_NI, const Tensor& weight_OI, const Tensor& bias_O) {
  Tensor added_NO = at::addmm(residual_NO, x_NI, weight_OI.t());
  return bias_O.numel() == 0 ? added_NO : added_NO.add_(bias_O);
}

// `_Layer` of llama_forward.py. `weights` and `numbers` are those of `NativeStep`.
Tensor layer(Tensor hidden_NE, at::TensorList weights, at::ArrayRef<double> numbers, const Tensor& cos_N1D,
             const Tensor& sin_N1D, const Plan& plan, const Tensor& keys_STKD, const Tensor& values_STKD) {
  const Tensor &before = weights[0], &qkv_weight = weights[1], &qkv_bias = weights[2], &qk_norm = weights[3];
  const Tensor &out_weight = weights[4], &out_bias = weights[5], &after = weights[6];
  const Tensor &gate_up_weight = weights[7], &gate_up_bias = weights[8], &down_weight = weights[9];
  const Tensor& down_bias = weights[10];
  const int64_t kv_heads = keys_STKD.size(2), size = keys_STKD.size(3);
  const Tensor normed_NE = at::rms_norm(hidden_NE, before.sizes(), before, numbers[0]);
  const Tensor qkv = at::linear(normed_NE, qkv_weight, given(qkv_bias)).view({hidden_NE.size(0), -1, size});
  const int64_t rotated = qkv.size(1) - kv_heads, heads = rotated - kv_heads;
  Tensor qk = qkv.narrow(1, 0, rotated);
  if (qk_norm.numel() != 0) qk = at::rms_norm(qk, {size}, {}, numbers[2]) * qk_norm;
  qk = at::addcmul(qk * cos_N1D, at::roll(qk, {size / 2}, {-1}), sin_N1D);
  keys_STKD.flatten(0, 1).index_copy_(0, plan.places_N, qk.narrow(1, heads, kv_heads));
  values_STKD.flatten(0, 1).index_copy_(0, plan.places_N, qkv.narrow(1, rotated, kv_heads));
  const Tensor mixed_NHD = attend(qk.narrow(1, 0, heads), keys_STKD, values_STKD, plan, numbers[3]);
  hidden_NE = add(hidden_NE, mixed_NHD.flatten(1), out_weight, out_bias);
  const Tensor normed_after_NE = at::rms_norm(hidden_NE, after.sizes(), after, numbers[1]);
  const auto gate_up = at::linear(normed_after_NE, gate_up_weight, given(gate_up_bias)).chunk(2, -1);
  return add(hidden_NE, at::silu(gate_up[0]).mul_(gate_up[1]), down_weight, down_bias);
}

// `LlamaForward` of llama_forward.py. `rows`: slot, start and end of each.
Tensor step(at::IntArrayRef tokens, at::IntArrayRef rows, at::TensorList weights, at::ArrayRef<double> numbers,
            at::TensorList keys, at::TensorList values, bool all_positions) {
  const c10::InferenceMode guard;
  const Tensor &embedding = weights[0], &norm = weights[1], &head_weight = weights[2], &head_bias = weights[3];
  const Plan plan(rows, keys[0].size(1));
  const Tensor tokens_N = integers(tokens.vec());
  const Tensor cos_N1D = weights[4].index_select(0, plan.positions_N), sin_N1D = weights[5].index_select(0, plan.positions_N);
  Tensor hidden_NE = at::embedding(embedding, tokens_N);
  for (size_t at = 0; at < keys.size(); ++at)
    hidden_NE = layer(hidden_NE, weights.slice(kShared + at * kOfLayer, kOfLayer),
                      numbers.slice(1 + at * kNumbersOfLayer, kNumbersOfLayer), cos_N1D, sin_N1D, plan, keys[at], values[at]);
  const Tensor kept_RE = all_positions ? hidden_NE : hidden_NE.index_select(0, plan.last_R);
  return at::linear(at::rms_norm(kept_RE, norm.sizes(), norm, numbers[0]), head_weight, given(head_bias));
}

// `sample` of sampler.py, for rows that sample from all ids. No temperatures: 1 for each.
std::tuple<std::vector<int64_t>, std::vector<double>> draw(const Tensor& logits_RV, at::ArrayRef<double> temperatures,
                                                           at::ArrayRef<double> uniforms) {
  const c10::InferenceMode guard;
  Tensor scaled_RV = logits_RV;
  if (!temperatures.empty()) scaled_RV = logits_RV / at::tensor(temperatures, at::kFloat).unsqueeze(1);
  const Tensor logprobs_RV = scaled_RV.log_softmax(-1);
  const Tensor cumulative_RV = logprobs_RV.exp().cumsum(-1, at::kDouble);
  const Tensor total_R1 = cumulative_RV.narrow(1, cumulative_RV.size(1) - 1, 1);
  const Tensor targets_R1 = at::tensor(uniforms, at::kDouble).unsqueeze(1) * total_R1;
  const Tensor tokens_R1 =
      at::searchsorted(cumulative_RV, targets_R1, false, true).clamp_max_(cumulative_RV.size(1) - 1);
  const Tensor chosen_R1 =
      at::where(total_R1 > 0, logprobs_RV.gather(1, tokens_R1), std::numeric_limits<double>::quiet_NaN());
  const int64_t* token = tokens_R1.const_data_ptr<int64_t>();
  const Tensor exact_R1 = chosen_R1.to(at::kDouble).contiguous();
  const double* logprob = exact_R1.const_data_ptr<double>();
  const int64_t rows = tokens_R1.size(0);
  return {std::vector<int64_t>(token, token + rows), std::vector<double>(logprob, logprob + rows)};
}

}  // namespace

TORCH_LIBRARY(onward, library) {
  library.def(
      "step(int[] tokens, int[] rows, Tensor[] weights, float[] numbers, Tensor(a!)[] keys, Tensor(b!)[] values, "
      "bool all_positions) -> Tensor",
      step);
  library.def("draw(Tensor logits, float[] temperatures, float[] uniforms) -> (int[], float[])", draw);
}
