#include "observe/module_profile.h"

#include "base/error.h"

namespace ds {

std::string_view parent_module(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view ModuleProfile::module_of(std::string_view parameter) {
  return parent_module(parameter);
}

void ModuleProfile::add_parameter(std::string_view name, int64_t elements) {
  parameters_.emplace_back(module_of(name), elements);
}

ModuleProfile::Site ModuleProfile::site(std::string_view module, const char* op) {
  const auto [at, fresh] =
      site_of_.try_emplace(std::pair(std::string(module), std::string(op)), sites_.size());
  if (fresh) sites_.push_back({at->first.first, at->first.second, {}});
  return at->second;
}

void ModuleProfile::charge(double now) {
  const auto [site, phase] = open_.back();
  sites_[site].sums[static_cast<size_t>(phase)].seconds += now - mark_;
}

void ModuleProfile::begin(Site site, ProfilePhase phase) {
  const double now = clock_();
  if (!open_.empty()) charge(now);
  ++sites_.at(site).sums[static_cast<size_t>(phase)].calls;
  open_.emplace_back(site, phase);
  mark_ = now;
}

void ModuleProfile::end() {
  DS_CHECK(!open_.empty(), Code::kState, "an operator ended that did not begin");
  const double now = clock_();
  charge(now);
  open_.pop_back();
  mark_ = now;
}

void ModuleProfile::add(Site site, ProfilePhase phase, const Arithmetic& work) {
  sites_.at(site).sums[static_cast<size_t>(phase)].work += work;
}

std::vector<ProfiledModule> ModuleProfile::modules() const {
  struct Node {
    std::vector<std::string> children;
    ProfiledModule row;
  };
  std::map<std::string, Node> nodes;
  nodes.try_emplace("");
  // Finds a module's node, hanging it and new modules above it into the tree.
  const auto reach = [&](const std::string& path) -> ProfiledModule& {
    std::string child = path;
    for (bool fresh = nodes.try_emplace(child).second; fresh;) {
      std::string parent(parent_module(child));
      fresh = nodes.try_emplace(parent).second;
      nodes[parent].children.push_back(child);
      child = std::move(parent);
    }
    return nodes[path].row;
  };
  for (const auto& [module, elements] : parameters_) reach(module).parameters += elements;
  for (const SiteSums& site : sites_) {
    ProfiledModule& row = reach(site.module);
    row.operators.emplace_back(site.op, site.sums);
    for (size_t p = 0; p < kProfilePhases; ++p) row.sums[p] += site.sums[p];
  }

  std::vector<ProfiledModule> rows;
  std::vector<std::pair<std::string, int>> open{{"", -1}};
  while (!open.empty()) {
    auto [path, parent] = std::move(open.back());
    open.pop_back();
    Node& node = nodes[path];
    const int index = static_cast<int>(rows.size());
    node.row.path = path;
    node.row.parent = parent;
    node.row.depth = parent < 0 ? 0 : rows[static_cast<size_t>(parent)].depth + 1;
    for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) {
      open.emplace_back(std::move(*child), index);
    }
    rows.push_back(std::move(node.row));
  }
  for (size_t i = rows.size(); i-- > 1;) {
    ProfiledModule& above = rows[static_cast<size_t>(rows[i].parent)];
    above.parameters += rows[i].parameters;
    for (size_t p = 0; p < kProfilePhases; ++p) above.sums[p] += rows[i].sums[p];
  }
  return rows;
}

}  // namespace ds
