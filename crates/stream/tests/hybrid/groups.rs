//! What is made of groups, case by case.
