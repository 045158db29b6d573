#include "worker/python/native/json_convert.h"

#include <string>

namespace ddp::python {
namespace {

using nlohmann::json;

json integer_to_json(py::handle value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) return number;
  const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(value.ptr()) : 0;
  if (overflow > 0 && PyErr_Occurred() == nullptr) return large;
  PyErr_Clear();
  throw py::value_error("an int of more than 64 bits");
}

}  // namespace

json to_json(py::handle value) {
  if (value.is_none()) return nullptr;
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return integer_to_json(value);
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::isinstance<py::list>(value)) {
    json list = json::array();
    for (const py::handle item : value) list.push_back(to_json(item));
    return list;
  }
  if (py::isinstance<py::dict>(value)) {
    json object = json::object();
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
      if (!py::isinstance<py::str>(key)) throw py::type_error("a key that is no str");
      object[key.cast<std::string>()] = to_json(item);
    }
    return object;
  }
  throw py::type_error(std::string("a ") + Py_TYPE(value.ptr())->tp_name);
}

py::object to_python(const json& value) {
  switch (value.type()) {
    case json::value_t::boolean:
      return py::bool_(value.get<bool>());
    case json::value_t::number_integer:
      return py::int_(value.get<long long>());
    case json::value_t::number_unsigned:
      return py::int_(value.get<unsigned long long>());
    case json::value_t::number_float:
      return py::float_(value.get<double>());
    case json::value_t::string:
      return py::str(value.get_ref<const std::string&>());
    case json::value_t::array: {
      py::list list;
      for (const json& item : value) list.append(to_python(item));
      return list;
    }
    case json::value_t::object: {
      py::dict dict;
      for (const auto& [key, item] : value.items()) dict[py::str(key)] = to_python(item);
      return dict;
    }
    default:
      return py::none();
  }
}

}  // namespace ddp::python
