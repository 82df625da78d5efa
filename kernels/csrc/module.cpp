// The Python face of the operators: bitwitness.kernels._native (stub: kernels/_native.pyi).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "buffers.h"
#include "digest.h"
#include "errors.h"
#include "executor.h"
#include "fp_env.h"
#include "hash_pairs.h"
#include "library.h"
#include "permutation.h"
#include "philox.h"
#include "signature.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace bitwitness {
namespace {

using Shape = std::vector<int64_t>;
using Readable = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Writable = nb::ndarray<nb::c_contig, nb::device::cpu>;

// As program.py sends them: (name, kind, dtype, shape, arena offset) and (op, [(buffer, offset, shape)],
// [(integer, real)]).
using BufferTuple = std::tuple<std::string, std::string, std::string, Shape, int64_t>;
using ViewTuple = std::tuple<int, int64_t, Shape>;
using CallTuple = std::tuple<std::string, std::vector<ViewTuple>, std::vector<std::pair<int64_t, double>>>;

DType parse_dtype(const std::string& text) {
  if (text == "F32") return DType::F32;
  if (text == "I32") return DType::I32;
  if (text == "I16") return DType::I16;
  throw KernelError("dtype must be F32, I32 or I16, not " + text);
}

BufferKind parse_kind(const std::string& text) {
  if (text == "input") return BufferKind::Input;
  if (text == "output") return BufferKind::Output;
  if (text == "inout") return BufferKind::InOut;
  if (text == "temp") return BufferKind::Temp;
  throw KernelError("kind must be input, output, inout or temp, not " + text);
}

std::vector<BufferSpec> parse_buffers(const std::vector<BufferTuple>& tuples) {
  std::vector<BufferSpec> buffers;
  for (const auto& [name, kind, dtype, shape, offset] : tuples) {
    buffers.push_back({name, parse_kind(kind), parse_dtype(dtype), shape, offset});
  }
  return buffers;
}

CallSpec parse_call(const CallTuple& tuple) {
  const auto& [op, operands, attributes] = tuple;
  CallSpec call{op, {}, {}};
  for (const auto& [buffer, offset, shape] : operands) call.operands.push_back({buffer, offset, shape});
  for (const auto& [integer, real] : attributes) call.attributes.push_back({integer, static_cast<float>(real)});
  return call;
}

// A numpy array or torch tensor, kept alive while it is bound.
struct Bound {
  nb::object owner;
  char* data;
  int64_t bytes;
};

template <class Array> bool matches(const Array& array, DType dtype) {
  switch (dtype) {
    case DType::F32: return array.dtype() == nb::dtype<float>();
    case DType::I32: return array.dtype() == nb::dtype<int32_t>();
    case DType::I16: return array.dtype() == nb::dtype<int16_t>();
  }
  return false;
}

template <class Array> Bound bind_as(nb::handle object, DType dtype, const Shape* shape, const std::string& what) {
  const auto refuse = [&] {
    std::string expected = dtype == DType::F32 ? "float32" : dtype == DType::I32 ? "int32" : "int16";
    if (shape != nullptr) {
      expected += " [";
      for (size_t i = 0; i < shape->size(); ++i) expected += (i ? "," : "") + std::to_string((*shape)[i]);
      expected += "]";
    }
    const nb::object given_dtype = nb::getattr(object, "dtype", nb::str("no dtype"));
    const nb::object given_shape = nb::getattr(object, "shape", nb::str("no shape"));
    throw ShapeError(what + " needs a contiguous" + (std::is_same_v<Array, Writable> ? ", writable" : "") +
                     " CPU array of " + expected + "; got " + nb::cast<std::string>(nb::str(object.type())) + " of " +
                     nb::cast<std::string>(nb::str(given_dtype)) + ", shape " +
                     nb::cast<std::string>(nb::str(given_shape)));
  };
  Array array;
  if (!nb::try_cast(object, array, false) || !matches(array, dtype)) refuse();
  if (shape != nullptr) {
    bool equal = array.ndim() == shape->size();
    for (size_t i = 0; equal && i < shape->size(); ++i) equal = static_cast<int64_t>(array.shape(i)) == (*shape)[i];
    if (!equal) refuse();
  }
  char* const data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(array.data())));
  return {nb::cast(array, nb::rv_policy::reference), data, static_cast<int64_t>(array.nbytes())};
}

struct ReadF32 {
  Bound bound;
  explicit ReadF32(nb::handle x) : bound(bind_as<Readable>(x, DType::F32, nullptr, "this function")) {}
  const float* data() const { return reinterpret_cast<const float*>(bound.data); }
  int64_t size() const { return bound.bytes / 4; }
};

struct WriteF32 {
  Bound bound;
  explicit WriteF32(nb::handle x) : bound(bind_as<Writable>(x, DType::F32, nullptr, "this function")) {}
  float* data() const { return reinterpret_cast<float*>(bound.data); }
  int64_t size() const { return bound.bytes / 4; }
};

void check_sizes(bool equal) {
  if (!equal) throw ShapeError("the arrays must have the same number of elements");
}

// Arrays bound to different buffers must not share memory that is written.
void check_disjoint(const std::vector<BufferSpec>& buffers, const std::vector<int>& external,
                    const std::vector<Bound>& bound) {
  std::vector<int> order(bound.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return bound[a].data < bound[b].data; });
  int furthest = -1, furthest_written = -1;
  const auto end = [&](int i) { return bound[i].data + bound[i].bytes; };
  for (const int i : order) {
    const bool written = buffers[external[i]].kind != BufferKind::Input;
    const int clash = written ? furthest : furthest_written;
    if (clash >= 0 && end(clash) > bound[i].data) {
      throw KernelError("buffers " + buffers[external[clash]].name + " and " + buffers[external[i]].name +
                        " are bound to the same memory; give each its own");
    }
    if (furthest < 0 || end(i) > end(furthest)) furthest = i;
    if (written && (furthest_written < 0 || end(i) > end(furthest_written))) furthest_written = i;
  }
}

std::unique_ptr<Executor> make_executor(const std::vector<BufferTuple>& buffers, const std::vector<CallTuple>& calls,
                                        int64_t arena_bytes, int threads) {
  std::vector<CallSpec> specs;
  for (const CallTuple& call : calls) specs.push_back(parse_call(call));
  return std::make_unique<Executor>(parse_buffers(buffers), specs, arena_bytes, threads);
}

std::vector<void*> bind_all(const Executor& executor, const std::vector<nb::object>& arrays,
                            std::vector<Bound>& bound) {
  std::vector<int> external;
  for (size_t i = 0; i < executor.buffers().size(); ++i) {
    if (executor.buffers()[i].kind != BufferKind::Temp) external.push_back(static_cast<int>(i));
  }
  if (arrays.size() != external.size()) throw KernelError("an array is needed for every buffer that is not temp");
  std::vector<void*> pointers;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const BufferSpec& buffer = executor.buffers()[external[i]];
    const std::string what = "buffer " + buffer.name;
    bound.push_back(buffer.kind == BufferKind::Input
                        ? bind_as<Readable>(arrays[i], buffer.dtype, &buffer.shape, what)
                        : bind_as<Writable>(arrays[i], buffer.dtype, &buffer.shape, what));
    pointers.push_back(bound.back().data);
  }
  check_disjoint(executor.buffers(), external, bound);
  return pointers;
}

void run_executor(Executor& executor, const std::vector<nb::object>& arrays) {
  std::vector<Bound> bound;
  const std::vector<void*> pointers = bind_all(executor, arrays, bound);
  const nb::gil_scoped_release release;
  executor.run(pointers);
}

nb::bytes bytes_of(const std::vector<Hash>& hashes) {
  return nb::bytes(hashes.empty() ? nullptr : hashes.front().data(), hashes.size() * sizeof(Hash));
}

// What every call wrote: (call, operand, the hashes of its chunks).
nb::list trace_executor(Executor& executor, const std::vector<nb::object>& arrays) {
  std::vector<Bound> bound;
  const std::vector<void*> pointers = bind_all(executor, arrays, bound);
  std::vector<Written> traced;
  {
    const nb::gil_scoped_release release;
    traced = executor.trace(pointers);
  }
  nb::list list;
  for (const Written& w : traced) list.append(nb::make_tuple(w.call, w.operand, bytes_of(w.chunks)));
  return list;
}

nb::bytes hash_chunks(nb::handle array) {
  Readable readable;
  DType dtype = DType::F32;
  if (nb::try_cast(array, readable, false)) {
    for (const DType candidate : {DType::I32, DType::I16}) if (matches(readable, candidate)) dtype = candidate;
  }
  const Bound bound = bind_as<Readable>(array, dtype, nullptr, "this function");
  std::vector<Hash> hashes;
  {
    const nb::gil_scoped_release release;
    for (int64_t c = 0; c < chunk_count(bound.bytes); ++c) {
      hashes.push_back(chunk_hash(bound.data, bound.bytes, dtype, c));
    }
  }
  return bytes_of(hashes);
}

// Bytes of arrays or buffers, kept alive while they are read.
struct Pieces {
  std::vector<Readable> owners;
  std::vector<Piece> pieces;

  explicit Pieces(const std::vector<nb::object>& objects) {
    for (const nb::object& object : objects) {
      Readable array;
      if (!nb::try_cast(object, array, false)) throw ShapeError("hashes are of contiguous arrays and buffers on the CPU");
      pieces.push_back({array.data(), array.nbytes()});
      owners.push_back(std::move(array));
    }
  }
};

void require_pairs(int threads) {
  if (!hashes_pairs()) throw KernelError("this processor has no SHA instructions that are known here");
  if (threads < 1 || threads > 256) throw KernelError("threads must be 1 to 256");
}

nb::bytes hash_leaves(const std::vector<nb::object>& objects, int64_t chunk_bytes, int threads) {
  require_pairs(threads);
  if (chunk_bytes < 1) throw KernelError("a chunk has at least one byte");
  const Pieces pieces(objects);
  std::vector<Hash> hashes;
  {
    const nb::gil_scoped_release release;
    hashes = chunk_leaves(pieces.pieces, static_cast<size_t>(chunk_bytes), threads);
  }
  return bytes_of(hashes);
}

nb::bytes hash_macs(const nb::bytes& key, const std::vector<nb::object>& objects, int threads) {
  require_pairs(threads);
  if (key.size() > 64) throw KernelError("a key has at most 64 bytes");
  const Pieces pieces(objects);
  const std::string_view secret(key.c_str(), key.size());
  std::vector<Hash> hashes;
  {
    const nb::gil_scoped_release release;
    hashes = macs(secret, pieces.pieces, threads);
  }
  return bytes_of(hashes);
}

nb::list describe_operators() {
  nb::list table;
  const Library& declarations = generic::library;  // the declarations are the same in every library
  for (int i = 0; i < declarations.operator_count; ++i) {
    const Operator& op = *declarations.operators[i];
    const Signature& signature = signature_of(op);
    nb::list operands, attributes;
    for (const OperandSpec& spec : signature.operands) {
      operands.append(nb::make_tuple(spec.name, name_of(spec.direction), name_of(spec.dtype), spec.shape, spec.may_be,
                                     spec.read_where));
    }
    for (const AttributeSpec& spec : signature.attributes) {
      attributes.append(nb::make_tuple(spec.name, name_of(spec.kind)));
    }
    table.append(nb::make_tuple(op.name, op.version, operands, attributes, op.operands, op.attributes, op.rules,
                                op.footprint, op.functions));
  }
  return table;
}

// The shape of every operand of an operator, [] where the ones given (not None) and the attributes do not say.
std::vector<Shape> operand_shapes(const std::string& name, const std::vector<std::optional<Shape>>& given,
                                  const std::vector<std::pair<int64_t, double>>& attributes) {
  Call call;
  call.op = &find_operator(name.c_str());
  const Signature& signature = signature_of(*call.op);
  if (given.size() != signature.operands.size() || attributes.size() != signature.attributes.size()) {
    throw KernelError(name + " takes " + std::to_string(signature.operands.size()) + " operands and " +
                      std::to_string(signature.attributes.size()) + " attributes");
  }
  for (size_t i = 0; i < given.size(); ++i) {
    Operand& operand = call.operands[i];
    operand.rank = given[i] ? static_cast<int>(given[i]->size()) : -1;
    if (operand.rank > kMaxRank) throw ShapeError(name + ": an operand has more than 4 dimensions");
    for (int axis = 0; axis < operand.rank; ++axis) operand.shape[axis] = (*given[i])[axis];
  }
  for (size_t i = 0; i < attributes.size(); ++i) {
    call.attributes[i] = {attributes[i].first, static_cast<float>(attributes[i].second)};
  }
  return infer_shapes(call);
}

const Function& find_function(const std::string& name) {
  for (int i = 0; i < library().function_count; ++i) {
    if (name == library().functions[i].name) return library().functions[i];
  }
  throw KernelError("no function '" + name + "'");
}

void apply(const std::string& name, nb::handle x, nb::handle y, bool scalar) {
  const ReadF32 from(x);
  const WriteF32 to(y);
  check_sizes(from.size() == to.size());
  const FloatingPointEnvironment environment;
  (scalar ? find_function(name).scalar : find_function(name).vector)(from.data(), to.data(), to.size());
}

void apply_fma(nb::handle a, nb::handle b, nb::handle c, nb::handle y) {
  const ReadF32 x0(a), x1(b), x2(c);
  const WriteF32 to(y);
  check_sizes(x0.size() == to.size() && x1.size() == to.size() && x2.size() == to.size());
  const FloatingPointEnvironment environment;
  library().fma(x0.data(), x1.data(), x2.data(), to.data(), to.size());
}

using Key = std::pair<uint32_t, uint32_t>;

PhiloxKey key_of(const Key& key) { return {{key.first, key.second}}; }

template <class Fill> void fill_random(nb::handle y, Fill fill) {
  const WriteF32 to(y);
  const nb::gil_scoped_release release;
  const FloatingPointEnvironment environment;
  fill(to.data(), to.size());
}

// Throw our errors as the classes of bitwitness.kernels.errors.
void translate(const std::exception_ptr& thrown, void*) {
  const auto raise = [](const char* name, const std::exception& error) {
    PyErr_SetString(nb::module_::import_("bitwitness.kernels.errors").attr(name).ptr(), error.what());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const ShapeError& error) {
    raise("ShapeError", error);
  } catch (const KernelError& error) {
    raise("KernelError", error);
  }
}

}  // namespace
}  // namespace bitwitness

NB_MODULE(_native, m) {
  using namespace bitwitness;
  nb::register_exception_translator(translate);

  m.def("isa", [] { return library().isa; });
  m.def("flags", [] { return library().flags; });
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Library* candidate : available_libraries()) names.push_back(candidate->isa);
    return names;
  });
  m.def("operators", describe_operators);
  m.def("control_word", [] { return static_cast<uint64_t>(FloatingPointEnvironment::read()); });

  m.def("check_call", [](const std::vector<BufferTuple>& buffers, const CallTuple& call) {
    check_call_spec(parse_buffers(buffers), parse_call(call));
  });
  m.def("program_cost", [](const std::vector<BufferTuple>& buffers, const std::vector<CallTuple>& calls, int threads) {
    std::vector<CallSpec> specs;
    for (const CallTuple& call : calls) specs.push_back(parse_call(call));
    const Cost cost = cost_of(parse_buffers(buffers), specs, threads);
    return std::tuple(cost.work, cost.scratch, cost.outputs, cost.chunks);
  });
  nb::class_<Executor>(m, "Executor")
      .def(nb::new_(&make_executor), "buffers"_a, "calls"_a, "arena_bytes"_a, "threads"_a)
      .def("run", run_executor)
      .def("trace", trace_executor)
      .def("nanoseconds", &Executor::nanoseconds);

  m.def("apply", apply, "name"_a, "x"_a, "y"_a, "scalar"_a = false);
  m.def("fma", apply_fma);

  m.def("philox4x32", [](std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> counter, Key key, int rounds) {
    auto [c0, c1, c2, c3] = counter;
    uint32_t words[4] = {c0, c1, c2, c3};
    const PhiloxKey k = key_of(key);
    philox4x32(words, k.word, rounds);
    return std::tuple(words[0], words[1], words[2], words[3]);
  }, "counter"_a, "key"_a, "rounds"_a = 10);
  m.def("uniform", [](nb::handle y, Key key, uint64_t first) {
    fill_random(y, [&](float* to, int64_t n) { library().uniform(to, n, first, key_of(key)); });
  }, "y"_a, "key"_a, "first"_a = 0);
  m.def("normal", [](nb::handle y, Key key, uint64_t first) {
    fill_random(y, [&](float* to, int64_t n) { library().normal(to, n, first, key_of(key)); });
  }, "y"_a, "key"_a, "first"_a = 0);
  m.def("trunc_normal", [](nb::handle y, Key key, double std, double bound, uint64_t first) {
    fill_random(y, [&](float* to, int64_t n) {
      library().trunc_normal(to, n, first, key_of(key), static_cast<float>(std), static_cast<float>(bound));
    });
  }, "y"_a, "key"_a, "std"_a, "bound"_a, "first"_a = 0);
  m.def("permutation", [](uint64_t i, uint64_t n, Key key, uint64_t epoch) {
    return permutation(i, n, key_of(key), epoch);
  }, "i"_a, "n"_a, "key"_a, "epoch"_a = 0);

  m.def("chunk_hashes", hash_chunks);
  m.def("hashes_pairs", hashes_pairs);
  m.def("chunk_leaves", hash_leaves, "pieces"_a, "chunk_bytes"_a, "threads"_a);
  m.def("macs", hash_macs, "key"_a, "pieces"_a, "threads"_a);
  m.def("operand_shapes", operand_shapes);
  m.def("sum_f64", [](nb::handle x) {
    const ReadF32 from(x);
    return sum_f64(from.data(), from.size());
  });
  m.def("has_nonfinite", [](nb::handle x) {
    const ReadF32 from(x);
    return has_nonfinite(from.data(), from.size());
  });
  m.def("canonicalise_nan", [](nb::handle x) {
    const WriteF32 to(x);
    return canonicalise_nan(to.data(), to.size());
  });
}
