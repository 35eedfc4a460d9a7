// A CUDA device that is not there: PyTorch's dispatch key CUDA, computed on the CPU in the same memory.
//
// A tensor on cuda:0 has a storage of its own whose bytes belong to a CPU storage. Every operator of the CUDA backend is
// redirected: arguments become CPU tensors on the same bytes, the CPU operator runs, results become cuda:0 tensors.
// As on CUDA, tensors of both devices in one operator are an error, except copies, indices and numbers (0-dim tensors).
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <mutex>
#include <set>

namespace {

using c10::Device;
using c10::DeviceType;
using c10::Stream;

const Device kGpu(DeviceType::CUDA, 0);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return kGpu; }
  Device getDevice() const override { return kGpu; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream exchangeStream(Stream) const override { return Stream(Stream::DEFAULT, kGpu); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// Page-locked memory: ordinary memory whose addresses are remembered.
struct Pinned final : c10::Allocator {
  static inline std::mutex mutex;
  static inline std::set<void*> blocks;
  c10::DataPtr allocate(size_t bytes) override {
    void* block = bytes ? c10::GetAllocator(DeviceType::CPU)->raw_allocate(bytes) : nullptr;
    std::lock_guard<std::mutex> guard(mutex);
    blocks.insert(block);
    return {block, block, &free, Device(DeviceType::CPU)};
  }
  static void free(void* block) {
    {
      std::lock_guard<std::mutex> guard(mutex);
      blocks.erase(block);
    }
    if (block) c10::GetAllocator(DeviceType::CPU)->raw_deallocate(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  int getNumGPUs() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  Device getDeviceFromPtr(void*) const override { return kGpu; }
  bool isPinnedPtr(const void* block) const override {
    std::lock_guard<std::mutex> guard(Pinned::mutex);
    return Pinned::blocks.count(const_cast<void*>(block)) > 0;
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static Pinned allocator;
    return &allocator;
  }
};

// The CPU storage behind a CUDA storage is the context of its data pointer.
void release(void* context) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context)); }

c10::Storage gpu_storage(const c10::Storage& cpu) {
  c10::StorageImpl* held = cpu.unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(held);
  c10::DataPtr pointer(held->mutable_data(), held, &release, kGpu);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), held->sym_nbytes(), std::move(pointer), nullptr, /*resizable=*/false));
}

c10::Storage cpu_storage(const c10::Storage& gpu) {
  auto* held = static_cast<c10::StorageImpl*>(gpu.unsafeGetStorageImpl()->mutable_data_ptr().get_context());
  TORCH_CHECK(held != nullptr, "a CUDA storage that was not made here");
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(held));
}

at::Tensor like(const at::Tensor& source, c10::Storage storage, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), source.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return made;
}

struct Call {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // (on the GPU, on the CPU), of the arguments
  bool gpu = false;
  bool mixed = false;

  at::Tensor to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      mixed = mixed || tensor.dim() > 0;
      return tensor;
    }
    gpu = true;
    for (auto& pair : pairs)
      if (pair.first.is_same(tensor)) return pair.second;
    at::Tensor made = like(tensor, cpu_storage(tensor.storage()), c10::DispatchKey::CPU);
    if (tensor.is_conj()) made._set_conj(true);
    if (tensor.is_neg()) made._set_neg(true);
    pairs.emplace_back(tensor, made);
    return made;
  }

  at::Tensor to_gpu(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cuda()) return tensor;
    for (auto& pair : pairs) {
      if (pair.second.is_same(tensor)) return pair.first;
    }
    for (auto& pair : pairs)
      if (pair.second.storage().is_alias_of(tensor.storage()))
        return like(tensor, pair.first.storage(), c10::DispatchKey::CUDA);
    return like(tensor, gpu_storage(tensor.storage()), c10::DispatchKey::CUDA);
  }

  // After operators that resize or replace an argument's memory.
  void update() {
    for (auto& [on_gpu, on_cpu] : pairs) {
      auto* impl = on_gpu.unsafeGetTensorImpl();
      auto* mine = impl->unsafe_storage().unsafeGetStorageImpl();
      auto* held = on_cpu.storage().unsafeGetStorageImpl();
      if (mine->mutable_data_ptr().get_context() != held) {
        impl->set_storage_keep_dtype(gpu_storage(on_cpu.storage()));
      } else if (mine->data() != held->data() || mine->nbytes() != held->nbytes()) {
        c10::raw::intrusive_ptr::incref(held);
        mine->set_data_ptr(c10::DataPtr(held->mutable_data(), held, &release, kGpu));
        mine->set_nbytes(held->nbytes());
      }
      if (on_gpu.sizes() != on_cpu.sizes() || on_gpu.strides() != on_cpu.strides() ||
          on_gpu.storage_offset() != on_cpu.storage_offset())
        impl->set_sizes_and_strides(on_cpu.sizes(), on_cpu.strides(), on_cpu.storage_offset());
    }
  }
};

template <class F>
c10::IValue convert(const c10::IValue& value, F change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector())
      list.push_back(each ? std::optional<at::Tensor>(change(*each)) : std::nullopt);
    return list;
  }
  return value;
}

bool may_mix(const std::string& name) {
  static const std::vector<std::string> names = {"aten::copy_", "aten::_copy_from", "aten::index", "aten::index_put_",
                                                 "aten::_index_put_impl_", "aten::_unsafe_index", "aten::set_"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

void redirect(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), begin = stack->size() - count;
  Call call;
  bool wanted = false, to_host = false;  // the device that the caller names
  for (size_t i = 0; i < count; i++) {
    c10::IValue& value = (*stack)[begin + i];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      wanted = true;
      value = Device(DeviceType::CPU);
    } else if (value.isDevice()) {
      to_host = true;
    } else if (value.isStorage() && value.toStorage().device().is_cuda()) {
      call.gpu = true;
      value = cpu_storage(value.toStorage());
    } else {
      value = convert(value, [&](const at::Tensor& each) { return call.to_cpu(each); });
    }
  }
  TORCH_CHECK(!(call.gpu && call.mixed) || may_mix(schema.name()),
              "Expected all tensors to be on the same device, but found cuda:0 and cpu, in ", schema.name());
  op.callBoxed(stack);
  call.update();
  const size_t results = schema.returns().size(), first = stack->size() - results;
  if (wanted || (call.gpu && !to_host))
    for (size_t i = 0; i < results; i++) {
      c10::IValue& value = (*stack)[first + i];
      const auto* alias = schema.returns()[i].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      value = convert(value, [&](const at::Tensor& each) {
        if (written) {  // an argument itself, which may be the CPU side of a copy
          for (auto& pair : call.pairs)
            if (pair.second.is_same(each)) return pair.first;
          return each;
        }
        return call.to_gpu(each);
      });
    }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&redirect>()); }

// Operators with one implementation for all devices choose a kernel by the device inside, so they are redirected by name.
static const auto registered = [] {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    if (name.name == "aten::_to_copy" || name.name == "aten::to") continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
      library->impl((name.overload_name.empty() ? name.name : name.name + "." + name.overload_name).c_str(), torch::CppFunction::makeFromBoxedFunction<&redirect>());
  }
  return true;
}();

}  // namespace

namespace at {
using HostCuda = Hooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", HostCuda)
}  // namespace at
