// What PyTorch asks of CUDA from C++, answered without a driver: which device a thread is on, its
// streams (all are the default one: Python's are in streams.py), and whether there are GPUs, which
// the autograd engine's threads of a device need to know.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <utility>
using namespace c10;

constexpr DeviceIndex kGpus = 8;
thread_local DeviceIndex current = 0;

struct Guard final : impl::DeviceGuardImplInterface {
  static Device here() { return Device(DeviceType::CUDA, current); }
  static Stream stream(Device d) { return Stream(Stream::DEFAULT, d); }
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override {
    Device before = here();
    current = d.index();
    return before;
  }
  Device getDevice() const override { return here(); }
  void setDevice(Device d) const override { current = d.index(); }
  void uncheckedSetDevice(Device d) const noexcept override { current = d.index(); }
  Stream getStream(Device d) const noexcept override { return stream(d); }
  Stream getDefaultStream(Device d) const override { return stream(d); }
  Stream exchangeStream(Stream s) const noexcept override { return s; }
  DeviceIndex deviceCount() const noexcept override { return kGpus; }
};

struct Hooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return kGpus; }
  // Since torch 2.6, which asks these; before, nobody does.
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  DeviceIndex deviceCount() const { return kGpus; }
  DeviceIndex getCurrentDevice() const { return current; }
  void setCurrentDevice(DeviceIndex index) const { current = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const { return std::exchange(current, index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const { return exchangeDevice(index); }
};

extern "C" void pretend() {
  impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(new Guard());
  // PyTorch made its hooks when it was loaded, and keeps them: they get the methods of others.
  auto* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  *reinterpret_cast<void**>(hooks) = *reinterpret_cast<void**>(new Hooks());
}
extern "C" int current_device() { return current; }
extern "C" void set_device(int index) { current = static_cast<DeviceIndex>(index); }
